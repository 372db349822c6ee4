"""Opens a deployment and releases tokens for ever, in a child that is killed at a random moment; again and again.

Arguments: run directory, key folder, database URL or "-", rounds, seed. Each child says how many tokens it found
released when it opened the ledger, and then every token once it was released.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from ledger_tools import ReplayableNoise, ballot, open_ledger

from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring


def release_for_ever(run_dir, keyring, url, running):
    noise = ReplayableNoise()
    with open_ledger(run_dir, keyring, url, noise=noise) as ledger:
        curator = ledger.curator
        os.write(1, b"opened %d\n" % curator.state.tokens_released)
        while True:
            start = noise.position = curator.state.tokens_released
            released = curator.release_many([ballot(start + i) for i in range(1 + start % 3)])
            lines = (b"%d %d\n" % (start + i, token.token) for i, token in enumerate(released))
            os.write(1, b"".join(lines))
            os.write(running, b".")


def main(release_for_ever=release_for_ever):
    run_dir, keys, url, rounds, seed = sys.argv[1:]
    run_dir, url = Path(run_dir), None if url == "-" else url
    keyring = Keyring(Path(keys), {})
    Database.of_run(run_dir, url).engine(write=True)  # imports the driver, once for all children
    moments = random.Random(int(seed))
    for turn in range(int(rounds)):
        running, report = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(running)
            try:
                release_for_ever(run_dir, keyring, url, report)
            finally:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        os.close(report)
        # Every fourth child may be killed while it opens the ledger; the others have shown a token.
        if turn % 4:
            os.read(running, 1)
        time.sleep(moments.uniform(0.0, 0.15))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(running)
        if not os.WIFSIGNALED(status):
            sys.exit("a child ended by itself")


if __name__ == "__main__":
    main()
