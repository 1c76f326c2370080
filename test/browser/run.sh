#!/usr/bin/env bash
# Opens a sample report in headless Chromium: no error on the console, the
# charts and transcripts are drawn, hostile text did nothing. Leaves screenshots
# in test/browser/out. Installs Debian's Chromium where none is found.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=test/browser/out
mkdir -p "$out"

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
  echo "installing chromium"
  sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
  browser=chromium
fi

go test ./internal/report -count=1 -run TestSampleReport -sample "$PWD/$out/report.html"

profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
# --no-sandbox: Chromium refuses to start as root, as in a CI container, without it. The page is our own.
chrome() {
  timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --user-data-dir="$profile" \
    --enable-logging=stderr --v=0 --virtual-time-budget=4000 "$@" "file://$PWD/$out/report.html"
}
chrome --dump-dom >"$out/dom.html" 2>"$out/console.txt"
chrome --window-size=1180,4700 --screenshot="$PWD/$out/light.png" 2>>"$out/console.txt"
chrome --window-size=1180,4700 --blink-settings=preferredColorScheme=0 --screenshot="$PWD/$out/dark.png" 2>>"$out/console.txt"
chrome --window-size=420,5200 --screenshot="$PWD/$out/narrow.png" 2>>"$out/console.txt"

fail() { echo "FAIL: $1"; exit 1; }
if grep -E 'CONSOLE.*(rror|refused|Refused|violat)' "$out/console.txt"; then fail "an error on the console"; fi
[ "$(grep -o '<canvas' "$out/dom.html" | wc -l)" -ge 2 ] || fail "the two charts are not drawn"
grep -q 'class="tok plus"' "$out/dom.html" || fail "no trained token is drawn"
grep -q 'class="tok skip"' "$out/dom.html" || fail "no evaluated token is drawn"
if grep -q '<img' "$out/dom.html"; then fail "hostile text became markup"; fi
for f in light dark narrow; do [ -s "$out/$f.png" ] || fail "no screenshot $f"; done
echo "report in $("$browser" --version 2>/dev/null | head -1): no console errors; screenshots in $out"
