#!/usr/bin/env bash
# Installs Reticent as examples/Containerfile does, into an empty environment outside the clone, builds two worlds on the
# default base and has the installed server answer one request. Needs the package index; takes some minutes.
#
#     scripts/check_clean_install.sh [FOLDER]
#
# What a container adds and this cannot try: its user, its volumes, its port. The Containerfile's pip and python lines are
# run as they stand, with /src and /opt moved into FOLDER and torch from the index that pip is configured for.
set -euo pipefail
clone=$(cd "$(dirname "$0")/.." && pwd)
folder=$(realpath -m "${1:-$(mktemp -d /tmp/reticent-clean.XXXXXX)}")
mkdir -p "$folder/src"
cp -r "$clone"/{requirements.lock,requirements-model.lock,pyproject.toml,README.md,LICENSE,src} "$folder/src"
rm -rf "$folder/src/src/"*.egg-info
python3 -m venv "$folder/venv"
# A hermetic environment: nothing of the caller's Python, cache or configuration but pip's own.
clean=(env -i "PATH=$folder/venv/bin:/usr/bin:/bin" "HOME=$folder/home" "TMPDIR=${TMPDIR:-/tmp}" HF_HUB_OFFLINE=1
  "PIP_CONFIG_FILE=${PIP_CONFIG_FILE:-$HOME/.config/pip/pip.conf}" "RETICENT_CACHE=$folder/opt/reticent-cache"
  "XDG_CONFIG_HOME=$folder/keys")
mkdir -p "$folder/home" "$folder/opt"

sed -n 's/^RUN \(\(pip\|python\|chmod\) .*\)/\1/p' "$clone/examples/Containerfile" |
  sed -e "s|/src|$folder/src|g; s|/opt/|$folder/opt/|g" -e 's|--index-url "$TORCH_INDEX" --extra-index-url [^ ]* ||' >"$folder/steps"
while IFS= read -r step; do
  echo "== $step"
  "${clean[@]}" bash -euo pipefail -c "$step" 2>&1 | { grep -v '^WARNING: Location' || true; } | tail -n 2
done <"$folder/steps"

cd "$folder"
printf '{"text": "%s"}\n' "The knee is better." "No fever since Monday." "Please see her again." "The rash has gone." >notes.jsonl
"${clean[@]}" reticent worlds build notes.jsonl --worlds 2 --adapt-layers top:1 --max-tokens 8 --epochs 1 --out run
"${clean[@]}" "$clone/scripts/serve_and_ask.sh" run
echo "== the installed server has answered; everything is in $folder"
