# Sourced by the other scripts: makes .venv with everything installed, once, and puts it on the path.
# VENV=/some/folder uses another folder; PYTHON=python3.12 another interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV="${VENV:-.venv}"

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "trajtrainer needs Python 3.11 or newer; none was found. Set PYTHON=/path/to/python3.11." >&2
  return 1
}

install() { # install EXTRA (dev, gym, ...), or `install run` for trajtrainer alone
  local stamp="$VENV/installed-$1" wanted
  wanted="$(cat pyproject.toml constraints.txt)"
  if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    local python package="."
    [ "$1" = run ] || package=".[$1]"
    python="$(find_python)"
    [ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV"
    echo "Installing into $VENV (first time only) ..."
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e "$package"
    echo "$wanted" >"$stamp"
  fi
  export PATH="$(cd "$VENV" && pwd)/bin:$PATH"
}
