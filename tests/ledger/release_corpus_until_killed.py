"""`release_until_killed` for a corpus deployment; the same arguments and the same output."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from corpus_tools import corpus_ballot, open_corpus_ledger
from release_until_killed import main


def release_for_ever(run_dir, keyring, url, running):
    with open_corpus_ledger(run_dir, keyring, url) as ledger:
        curator = ledger.curator
        os.write(1, b"opened %d\n" % curator.state.tokens_released)
        while True:
            start = curator.state.tokens_released
            released = curator.release_many([corpus_ballot(start + i) for i in range(1 + start % 3)])
            lines = (b"%d %d\n" % (start + i, token.token) for i, token in enumerate(released))
            os.write(1, b"".join(lines))
            os.write(running, b".")


if __name__ == "__main__":
    main(release_for_ever)
