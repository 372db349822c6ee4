#!/usr/bin/env bash
# Builds a wheel of the tree, installs it where no source is, and runs from another folder what must come with it: the
# demonstration, evaluate and audit (templates), benchmark (grids) and serve (dashboard), in tiny settings.
#
#     scripts/check_wheel.sh [FOLDER]
#
# The dependencies are those that the lock file put into .venv, seen through a path file; the package itself, its command
# and its data come from the wheel alone. scripts/check_clean_install.sh installs the dependencies afresh too.
set -euo pipefail
clone=$(cd "$(dirname "$0")/.." && pwd)
python=$(realpath -s "${PYTHON:-$clone/.venv/bin/python}")
folder=$(realpath -m "${1:-$(mktemp -d /tmp/reticent-wheel.XXXXXX)}")
mkdir -p "$folder/source" "$folder/home" "$folder/work"

echo "== a wheel of the tree"
cd "$clone"
git ls-files -z -- src pyproject.toml README.md LICENSE | xargs -0 cp --parents -t "$folder/source"
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$folder" "$folder/source"
"$python" -m venv --without-pip "$folder/venv"
"$python" -m pip --python "$folder/venv/bin/python" install --quiet --no-deps "$folder"/reticent-*.whl
rm -r "$folder/source"
site=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/locked.pth"

# A hermetic environment: nothing of the caller's Python, cache or configuration.
clean() {
  (cd "$folder/work" && env -i "PATH=$folder/venv/bin:/usr/bin:/bin" "HOME=$folder/home" "TMPDIR=${TMPDIR:-/tmp}" \
    HF_HUB_OFFLINE=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false "$@")
}

clean python - "$site" <<'PYTHON'
import sys
from importlib.metadata import requires, version
from packaging.requirements import Requirement
import reticent

assert reticent.__file__.startswith(sys.argv[1]), reticent.__file__
for extra in ("", "demo", "server"):
    for line in requires("reticent"):
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            assert wanted.specifier.contains(version(wanted.name)), line
PYTHON
git ls-files -- src | grep -v '\.py$' | sed 's|^src/||' | while IFS= read -r file; do
  [[ -f "$site/$file" ]] || { echo "the wheel lacks $file: add it to package-data in pyproject.toml" >&2; exit 1; }
done

echo "== reticent demo"
clean reticent demo --letters 24 --worlds 2 --max-tokens 2 | tail -n 3
echo "== reticent evaluate"
clean reticent evaluate demo-run/run --test demo-run/held_out.jsonl --limit 4 --max-tokens 32 --draws 2 --sessions 4 \
  --queries 4 --out evaluation | tail -n 3
echo "== reticent audit"
clean reticent audit demo-run/run --world 0 --members demo-run/letters.jsonl --attacks likelihood,reference \
  --bootstrap 100 --out audit | tail -n 3
grep -q '<style' "$folder/work/audit/report.html" "$folder/work/evaluation/report.html"
echo "== reticent benchmark"
for grid in smoke cpu privauditor; do clean reticent benchmark "$grid" --list --out grid >/dev/null; done
echo "== reticent serve"
clean "$clone/scripts/serve_and_ask.sh" demo-run/run
echo "== the wheel runs; everything is in $folder"
