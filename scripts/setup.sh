#!/usr/bin/env bash
# Everything a bare Debian 12 or Ubuntu 24.04 needs: Python 3.12, .venv with the locked packages, bubblewrap and tmux.
# Run it as often as you like; it does only what is missing. It asks for nothing and stores no secret.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
uv_version=0.13.9

say() { printf '[setup] %s\n' "$*" >&2; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

may_apt() { [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; }
apt_updated=
apt() { # installs packages where it may, else tells the one line to run
  if ! may_apt; then say "missing: $*. Run once: sudo apt-get install -y $*"; return 1; fi
  say "apt-get install $*"
  export DEBIAN_FRONTEND=noninteractive
  [ -n "$apt_updated" ] || quietly apt-get update -qq; apt_updated=1
  quietly apt-get install -y -qq --no-install-recommends "$@"
}
quietly() { # shows what a command says only where it fails
  local log; log=$(mktemp)
  "$@" > "$log" 2>&1 || { cat "$log" >&2; rm -f "$log"; fail "failed: $*"; }
  rm -f "$log"
}

is_312() { [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null)" = 3.12 ]; }
find_312() { # on PATH, then in pyenv's versions
  for candidate in python3.12 python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12; do
    path=$(command -v "$candidate" 2> /dev/null) || continue
    if is_312 "$path"; then "$path" -c 'import sys; print(sys.executable)'; return 0; fi
  done
  return 1
}

system_packages() {
  local missing=()
  command -v bwrap > /dev/null || missing+=(bubblewrap)
  command -v tmux > /dev/null || missing+=(tmux)
  command -v cc > /dev/null || command -v gcc > /dev/null || missing+=(gcc libc6-dev)
  command -v setpriv > /dev/null || missing+=(util-linux)
  [ ${#missing[@]} = 0 ] || apt "${missing[@]}" || [ -n "${MKB_WITHOUT_SYSTEM_PACKAGES:-}" ] || exit 1
}

get_uv() { # uv on PATH, else one of our own in .tools
  if command -v uv > /dev/null && uv --version > /dev/null 2>&1; then command -v uv; return; fi
  if [ ! -x .tools/bin/uv ]; then
    rm -rf .tools
    local python; python=$(find_312 || command -v python3 || true)
    if [ -z "$python" ]; then apt python3 python3-venv >&2 || exit 1; python=$(command -v python3); fi
    if ! "$python" -m venv .tools > /dev/null 2>&1; then
      rm -rf .tools
      apt "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2 || exit 1
      "$python" -m venv .tools
    fi
    say "installing uv $uv_version into .tools"
    quietly .tools/bin/python -m pip install -q --disable-pip-version-check "uv==$uv_version"
  fi
  echo "$PWD/.tools/bin/uv"
}

system_packages
uv=$(get_uv)
if ! { [ -x .venv/bin/python ] && is_312 .venv/bin/python; }; then
  python=$(find_312 || true)
  if [ -z "$python" ]; then
    say "no Python 3.12 on PATH or in pyenv; asking uv for one"
    if ! why=$("$uv" python install 3.12 2>&1); then
      printf '%s\n' "$why" | tail -n 3 >&2
      fail "no Python 3.12. Install it (Ubuntu 24.04: apt-get install python3.12; elsewhere: pyenv install 3.12) and run again"
    fi
    python=3.12
  fi
  "$uv" venv -q --clear --python "$python" .venv
fi
# a stamp of what was installed keeps the second run under a second
stamp=$(cat uv.lock pyproject.toml | sha256sum | cut -c1-16)
if [ "$(cat .venv/installed 2> /dev/null)" != "$stamp" ]; then
  say "installing the locked packages into .venv (about 3 GB to download the first time)"
  UV_HTTP_TIMEOUT=300 "$uv" sync -q --frozen --all-extras --compile-bytecode
  echo "$stamp" > .venv/installed
fi
