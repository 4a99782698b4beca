# Sourced by the other scripts: makes .venv with everything installed, once, and puts it on the path.
# VENV=/some/folder uses another folder; PYTHON=python3.12 another interpreter.
# --help prints the comment at the top of the script, before anything is installed. A script whose Python module lists
# its options sets module_has_help=yes, and prints them instead once it is installed.
set -euo pipefail
script="$(cd "$(dirname "$0")" 2>/dev/null && pwd)/$(basename "$0")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV="${VENV:-.venv}"
# PyTorch's index of builds without CUDA. What other indexes have for Linux brings all of CUDA along.
TORCH_CPU_INDEX="${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}"

case " $* " in
  *" -h "* | *" --help "*)
    if [ "${module_has_help:-no}" = no ] || [ ! -f "$VENV/installed-dev" ]; then
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script"
      exit 0
    fi
    ;;
esac

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

has_nvidia_gpu() { nvidia-smi -L >/dev/null 2>&1; }

# Isolated from pip's settings, so that no other index can answer; gives up after seconds.
has_torch() { # has_torch PYTHON INDEX, in the version that is pinned
  "$1" -m pip --isolated --disable-pip-version-check --timeout 5 --retries 0 index versions --index-url "$2" torch |
    grep "^Available versions:.* $(sed -n 's/^torch==//p' constraints.txt)"
} >/dev/null 2>&1

torch_options() { # torch_options PYTHON prints pip's options for torch, and tells what it is going to take
  if [ "$(uname -s)" != Linux ]; then
    echo "torch: about 0.2 GB to download." >&2
  elif has_nvidia_gpu; then
    echo "torch for the NVIDIA GPU found here, with CUDA: 4.9 GB in all." >&2
  elif has_torch "$1" "$TORCH_CPU_INDEX"; then
    echo "torch without CUDA, as there is no NVIDIA GPU: 0.2 GB to download, 0.8 GB installed." >&2
    echo "--extra-index-url $TORCH_CPU_INDEX"
  else
    echo "$TORCH_CPU_INDEX has no such torch for this machine or cannot be reached. Unless pip knows another source of a" \
      "build without CUDA, this takes 4.9 GB. Ctrl-C ends it; TORCH_CPU_INDEX=... names a mirror." >&2
  fi
}

install() { # install EXTRA (dev, gym, ...), or `install run` for trajtrainer alone
  local stamp="$VENV/installed-$1" wanted
  wanted="$(cat pyproject.toml constraints.txt)"
  if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    local python options package="."
    [ "$1" = run ] || package=".[$1]"
    python="$(find_python)"
    [ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV"
    echo "Installing into $VENV (first time only) ..."
    # Both names, as pip 25.3 has parted what is built from what is installed.
    local -x PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
    options="$(torch_options "$VENV/bin/python")"
    # shellcheck disable=SC2086  # no option is no word
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check $options torch
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -e "$package"
    echo "$wanted" >"$stamp"
  fi
  export PATH="$(cd "$VENV" && pwd)/bin:$PATH"
}
