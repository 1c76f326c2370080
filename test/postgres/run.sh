#!/usr/bin/env bash
# Runs the store's conformance suite, and what else needs it, on a PostgreSQL of
# its own: installs Debian's PostgreSQL 15 where there is none, starts it on a
# free port with its data in a temporary folder, as the user postgres, and stops
# it. FULGUR_POSTGRES names a database that is there already.
set -euo pipefail
cd "$(dirname "$0")/../.."

run() { go test -count=1 "$@" ./internal/store/postgres; }
if [ -n "${FULGUR_POSTGRES:-}" ]; then run "$@"; exit; fi

bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1 || true)
if [ -z "$bin" ]; then
  echo "installing postgresql-15"
  sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
  # Without a cluster of its own: ours is below.
  $sudo mkdir -p /etc/postgresql-common
  echo "create_main_cluster = false" | $sudo tee /etc/postgresql-common/createcluster.conf >/dev/null
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql-15 >/dev/null
  bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
fi

dir=$(mktemp -d)
as=() # PostgreSQL refuses to run as root
if [ "$(id -u)" = 0 ]; then as=(runuser -u postgres --); chown postgres "$dir"; fi
stop() {
  "${as[@]}" "$bin/pg_ctl" -D "$dir/data" -m fast -w stop >/dev/null 2>&1 || true
  rm -rf "$dir"
}
trap stop EXIT
cd "$dir"
"${as[@]}" "$bin/initdb" -D "$dir/data" -U fulgur -A trust -E UTF8 --no-sync >/dev/null
started=
for _ in 1 2 3 4 5; do # a port that is free now may be taken a moment later
  port=$(shuf -i 20000-50000 -n 1)
  if "${as[@]}" "$bin/pg_ctl" -D "$dir/data" -w -l "$dir/log" \
    -o "-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$dir" start >/dev/null; then started=1; break; fi
done
[ -n "$started" ] || { cat "$dir/log"; exit 1; }
cd - >/dev/null
export FULGUR_POSTGRES="postgres://fulgur@127.0.0.1:$port/postgres?sslmode=disable"
# For the test of a server that restarts.
export FULGUR_POSTGRES_RESTART="cd $dir && ${as[*]} $bin/pg_ctl -D $dir/data -m immediate -w -l $dir/log restart"
run "$@"
