# SPDX-License-Identifier: Apache-2.0
# Shared by the other scripts: find or install what a build needs, then build.
# Sourced, not run. Everything it does is safe to do twice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build_packages=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libcli11-dev
                libboost-program-options-dev libeigen3-dev zlib1g-dev libopenmpi-dev openmpi-bin
                libyaml-cpp-dev libtomlplusplus-dev)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev)

say() { printf '==> %s\n' "$*" >&2; }

# die CODE SENTENCE: the exit codes are those of the program itself.
die() {
  printf 'error: %s\n' "$2" >&2
  exit "$1"
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# install_missing PACKAGE...: through apt on Debian and Ubuntu; elsewhere says what the build will need.
install_missing() {
  if ! command -v apt-get >/dev/null; then
    say "There is no apt-get here; the build needs what Debian calls: $*."
    return
  fi
  local package missing=()
  for package in "$@"; do
    installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      die 5 "these packages are missing and there is no sudo to install them: ${missing[*]}; run 'apt-get install ${missing[*]}' as root."
    as_root=(sudo)
  fi
  say "Installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq ||
    die 5 "apt-get update failed, so these packages cannot be installed: ${missing[*]}."
  local log
  log=$(mktemp)
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die 5 "apt-get could not install: ${missing[*]}."
  fi
  rm -f "$log"
}

# yaml_cpp_source: prints a folder with the sources of yaml-cpp, for what is built for other machines than this one;
# nothing where there are none. SHARDWRIGHT_YAML_CPP_SOURCE names such a folder; else apt gets what this Debian or
# Ubuntu built its own from, into build/yaml-cpp, and needs no root for it.
yaml_cpp_source() {
  local folder=$PWD/build/yaml-cpp from
  if [ -n "${SHARDWRIGHT_YAML_CPP_SOURCE:-}" ]; then
    [ -e "$SHARDWRIGHT_YAML_CPP_SOURCE/include/yaml-cpp/yaml.h" ] ||
      die 3 "SHARDWRIGHT_YAML_CPP_SOURCE is '$SHARDWRIGHT_YAML_CPP_SOURCE', which holds no include/yaml-cpp/yaml.h."
    realpath "$SHARDWRIGHT_YAML_CPP_SOURCE"
    return
  fi
  if [ ! -e "$folder/source/include/yaml-cpp/yaml.h" ] && command -v apt-get >/dev/null && command -v dpkg-source >/dev/null; then
    say "Getting the sources of yaml-cpp"
    from=$(apt-cache policy libyaml-cpp-dev | awk '/^ +[0-9]+ http/ {sub("/", " ", $3); print "deb-src", $2, $3; exit}')
    rm -rf "$folder"
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
    echo "$from" >"$folder/sources.list"
    local options=(-qq -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null
                   -o "Dir::State::Lists=$folder/lists" -o "Dir::Cache=$folder/cache" -o APT::Sandbox::User="$(id -un)")
    (cd "$folder" && apt-get "${options[@]}" update && apt-get "${options[@]}" source yaml-cpp && mv yaml-cpp-*/ source) >&2 ||
      rm -rf "$folder"
  fi
  if [ -e "$folder/source/include/yaml-cpp/yaml.h" ]; then echo "$folder/source"; fi
}

# python_environment FOLDER PACKAGE...: has these in a virtual environment there, which is made where there is none.
python_environment() {
  install_missing python3-venv
  [ -x "$1/bin/python" ] || python3 -m venv "$1"
  "$1/bin/python" -m pip -q install "${@:2}"
}

# need_cuda [RELEASE]: nvcc with what CUDA code is built against, of that release or the newest; by default what is on the
# PATH. PyPI has 13.0 and later.
need_cuda() {
  local release=${1:-13.0} folder library
  if [ $# = 0 ] && command -v nvcc >/dev/null; then return; fi
  folder=$PWD/build/cuda-$release
  if ! compgen -G "$folder/lib/python3*/site-packages/nvidia/cu13/lib64" >/dev/null; then
    [ "$release" = newest ] || release="==$release.*"
    python_environment "$folder" "cuda-toolkit[nvcc,cudart,cccl,crt,nvvm,cublas,cupti,nvtx,nvrtc]${release#newest}" \
      nvidia-nccl-cu13 nvidia-cudnn-cu13
    # Wheels leave out the names by which linkers look.
    for library in "$folder"/lib/python3*/site-packages/nvidia/*/lib/lib*.so.*; do
      ln -s "$(basename "$library")" "${library%%.so.*}.so" 2>/dev/null || true
    done
    ln -s lib "$(echo "$folder"/lib/python3*/site-packages/nvidia/cu13)/lib64"
  fi
  folder=$(echo "$folder"/lib/python3*/site-packages/nvidia)
  export CUDAToolkit_ROOT=$folder/cu13 NCCL_ROOT=$folder/nccl CUDNN_ROOT=$folder/cudnn PATH=$folder/cu13/bin:$PATH
}

# need_cudnn_frontend: the headers by which cuDNN's graphs are built; attention is the executor's own without them.
need_cudnn_frontend() {
  local folder=$PWD/build/cudnn-frontend
  if [ -n "${CUDNN_FRONTEND_ROOT:-}" ] || ! command -v nvcc >/dev/null; then return; fi
  if ! compgen -G "$folder/lib/python3*/site-packages/include/cudnn_frontend.h" >/dev/null; then
    python_environment "$folder" --no-deps "nvidia-cudnn-frontend>=$(scripts/vendor_rule cudnn_frontend.oldest release)" >&2 ||
      return 0
  fi
  CUDNN_FRONTEND_ROOT=$(echo "$folder"/lib/python3*/site-packages)
  export CUDNN_FRONTEND_ROOT
}

# clang-format's output differs between versions, so only the one the tree was formatted with can judge it.
check_format() {
  local wanted=14
  if ! clang-format --version 2>/dev/null | grep -q "version $wanted\."; then
    say "Formatting not checked: there is no clang-format $wanted here"
    return
  fi
  say "Checking the formatting"
  find sim profiles tuner kernels exec cli tests -type f \
    \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 clang-format --dry-run -Werror --ferror-limit=1 ||
    die 1 "the files named above are not formatted, run clang-format -i on them."
}

# configure PRESET OPTION...: into build/PRESET.
configure() {
  local preset=$1 log
  shift
  case "$preset $*" in
    *-DSHARDWRIGHT_ENABLE_CUDA=OFF*) ;;
    ci* | dev* | map* | gpu* | release*) need_cudnn_frontend ;;
  esac
  if [ ! -e "build/$preset/CMakeCache.txt" ] && command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi
  say "Configuring build/$preset"
  log=$(mktemp)
  if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die 5 "CMake could not configure the build; the message above names what is missing."
  fi
  # The summary of what is on and off ends the configuration.
  sed -n '/^-- Shardwright/,/^-- Configuring/{/^-- Configuring/!p}' "$log" >&2
  rm -f "$log"
}

# build PRESET TARGET...: with one job per core, or fewer where memory is short (a job takes up to 1.5 GB).
build() {
  local preset=$1 jobs memory_kb
  shift
  jobs=$(nproc)
  memory_kb=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  if [ "$jobs" -gt $((memory_kb / 1500000 + 1)) ]; then jobs=$((memory_kb / 1500000 + 1)); fi
  say "Building with $jobs jobs"
  cmake --build "build/$preset" --parallel "$jobs" ${1:+--target "$@"} >&2 ||
    die 1 "the build in build/$preset failed; the first error is above."
}

# sanitized PRESET PROGRAM=FILTER...: builds these test programs and runs their tests without those that are heavy there,
# which SHARDWRIGHT_RECORD=1 records first (scripts/nightly sanitizers).
sanitized() {
  local preset=$1 pair programs=()
  shift
  for pair in "$@"; do programs+=("${pair%%=*}"); done
  build_sanitized "$preset" "${programs[@]}"
  scripts/test_map sanitized ${SHARDWRIGHT_RECORD:+--record} "$preset" "$@"
}

# build_sanitized PRESET PROGRAM...
build_sanitized() {
  install_missing "${test_packages[@]}" clang libclang-rt-dev lld
  configure "$1"
  build "$@"
}

# heavy_tests [FILE]: an expression for ctest of the tests that took more than three seconds of one machine's processor
# (tests/heavy.txt, which scripts/nightly tests records), or of those that another such list names.
heavy_tests() {
  awk '!/^#/ {gsub(/[].[+*()?^$|\\]/, "[&]", $1); printf "%s%s", (seen++ ? "|" : "^("), $1} END {print seen ? ")$" : "^$"}' "${1:-tests/heavy.txt}"
}
