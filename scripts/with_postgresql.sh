#!/usr/bin/env bash
# Runs a command beside a throw-away PostgreSQL cluster and passes its exit code on. Installs nothing.
#
#     scripts/with_postgresql.sh make test
#
# The command sees RETICENT_TEST_DATABASE_URL. The cluster lies in a temporary folder, listens on a free port of the
# loopback interface alone, and is gone afterwards. PostgreSQL refuses to run as root, so root hands it to `postgres`.
set -euo pipefail

bin=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
if [[ -z "$bin" || ! -x "$bin/initdb" ]]; then
  echo "no PostgreSQL server under /usr/lib/postgresql; install one, on Debian with: apt-get install postgresql" >&2
  exit 2
fi

folder=$(mktemp -d /tmp/reticent-postgresql.XXXXXX)
as_owner=()
if [[ $EUID -eq 0 ]]; then
  chown postgres "$folder"
  as_owner=(setpriv --reuid=postgres --regid=postgres --clear-groups --)
fi

stop() {
  "${as_owner[@]}" "$bin/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null 2>&1 || true
  rm -rf "$folder"
}
trap stop EXIT
cd /  # the owner of the cluster need not be able to enter the caller's folder

"${as_owner[@]}" "$bin/initdb" -D "$folder/data" --username=reticent --auth=trust --encoding=UTF8 >"$folder/initdb.log"
for attempt in 1 2 3 4 5; do
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  options="-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$folder"
  if "${as_owner[@]}" "$bin/pg_ctl" -D "$folder/data" -w -l "$folder/data/log" -o "$options" start >/dev/null; then
    break
  fi
  # Somebody took the port in between.
  [[ $attempt -lt 5 ]] || { cat "$folder/data/log" >&2; exit 1; }
done
cd "$OLDPWD"

export RETICENT_TEST_DATABASE_URL="postgresql://reticent@127.0.0.1:$port/postgres"
"$@"
