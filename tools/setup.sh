#!/bin/bash
# Installs what the build needs on Debian bookworm (CUDA and NCCL, where wanted, are found under /usr/local/cuda),
# and keys Bazel's disk cache by the installed libraries. Quick when everything is there; run it as often as you like.
# Usage: tools/setup.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  bazel-bootstrap bazel-platforms bazel-skylib bazel-rules-java bazel-rules-proto
  build-essential pkg-config ca-certificates
  libabsl-dev libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev libssl-dev libxxhash-dev
  libcli11-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libucx-dev
  clang-format clang-tidy python3 python3-dev python3-venv
  iproute2 openssl
)

say() { echo "setup: $*"; }
fail() {
  echo "setup: $1" >&2
  shift
  printf '  %s\n' "$@" >&2
  exit 1
}

missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' "${packages[@]}" 2>/dev/null |
    sed -n 's/^.i  *//p' || true)
  comm -23 <(printf '%s\n' "${packages[@]}" | sort) <(sort <<<"$installed")
}

# Says what to do about a failed apt-get, from its log ($2) and the step that failed ($1).
explain() {
  local step=$1 log=$2
  echo "setup: the last lines of apt-get:" >&2
  tail -n 8 "$log" | sed 's/^/  | /' >&2
  if grep -qE 'Could not get lock|Unable to acquire the dpkg|Unable to lock' "$log"; then
    fail "another package manager is running and holds apt's lock." \
      "Wait until it has ended ('ps -e | grep -E \"apt|dpkg\"' shows it), then run tools/setup.sh again."
  elif grep -q 'dpkg was interrupted' "$log"; then
    fail "an earlier installation was interrupted." \
      "Run 'dpkg --configure -a' as root, then tools/setup.sh again."
  elif grep -qE 'No space left|enough free space' "$log"; then
    fail "the disk is full: the packages need about 2.5 GB." \
      "Make room under / and /var/cache/apt, then run tools/setup.sh again."
  elif grep -qE 'Unable to locate package|has no installation candidate' "$log"; then
    fail "apt does not know some of the packages; the build is made for Debian 12 (bookworm), section main." \
      "Look at /etc/os-release and /etc/apt/sources.list, or at the network if 'apt-get update' failed above."
  elif grep -qE 'failure resolving|Could not (connect|resolve)|Unable to connect|Failed to fetch|timed out' "$log"; then
    fail "the Debian mirror cannot be reached." \
      "Check the network, http_proxy, and /etc/apt/sources.list; then run tools/setup.sh again." \
      "Without a network, install these from local media: ${missing[*]}"
  fi
  fail "$step failed; the whole log is in $log." "Mend what it names, then run tools/setup.sh again."
}

# Reads apt-get's lines, keeps them in the log ($1) and prints about fifteen lines of progress.
progress() {
  local line total=0 got=0 unpacked=0 set_up=0 waiting=
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$1"
    case $line in
      *' newly installed,'*) [[ $line =~ ([0-9]+)\ newly\ installed ]] && total=${BASH_REMATCH[1]} ;;
      *'Waiting for cache lock'*)
        [ -n "$waiting" ] || say "  another package manager holds apt's lock; waiting up to two minutes for it"
        waiting=yes
        ;;
      Get:*) show_progress downloaded $((++got)) "$total" ;;
      'Unpacking '*) show_progress unpacked $((++unpacked)) "$total" ;;
      'Setting up '*) show_progress 'set up' $((++set_up)) "$total" ;;
    esac
  done
}
show_progress() {
  local step=$((($3 + 4) / 5))
  if [ "$3" -gt 0 ] && { [ $(($2 % step)) = 0 ] || [ "$2" = "$3" ]; }; then say "  $1 $2 of $3"; fi
}

install_missing() {
  command -v apt-get >/dev/null || fail "this is not a Debian system (no apt-get)." \
    "Install what provides these Debian packages, by hand: ${missing[*]}" "then run tools/setup.sh again."
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
      as_root=(sudo)
    else
      fail "installing packages needs root, and sudo is not usable here." "Ask an administrator to run" \
        "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" "then run tools/setup.sh again."
    fi
  fi
  local log apt
  log=$(mktemp /tmp/headrace-setup-XXXXXX.log)
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -o DPkg::Lock::Timeout=120)
  say "${#missing[@]} of ${#packages[@]} packages are missing: ${missing[*]}"
  say "reading the package lists"
  # An unreachable mirror is an error only if the lists that are here do not suffice.
  "${apt[@]}" update </dev/null >>"$log" 2>&1 || say "apt-get update failed; trying with the lists that are here"
  say "installing (some minutes on a bare machine)"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null 2>&1 | progress "$log" ||
    explain "apt-get install" "$log"
  rm -f "$log"
}

command -v dpkg-query >/dev/null || fail "this is not a Debian system (no dpkg-query)." \
  "The build is made for Debian 12 (bookworm). Elsewhere, provide by hand what these packages hold: ${packages[*]}"
mapfile -t missing < <(missing_packages)
if [ "${#missing[@]}" = 0 ]; then
  say "all ${#packages[@]} packages are installed"
else
  install_missing
  mapfile -t missing < <(missing_packages)
  [ "${#missing[@]}" = 0 ] || fail "still missing after the installation: ${missing[*]}" "Run tools/setup.sh again."
  say "installed"
fi

# System headers are no inputs of Bazel's actions: key the disk cache by what is installed.
hash=$({
  dpkg-query -W 'libabsl*' 'libgrpc*' 'libprotobuf*' 'libucx*' 'libgtest*' 'libgmock*' 'libbenchmark*' \
    'nlohmann-json3*' 'libssl*' 'libxxhash*' 'g++*' 'libc6-dev*' 'libstdc++*' 2>/dev/null || true
  cat /usr/local/cuda/include/nccl.h 2>/dev/null || true
  /usr/local/cuda/bin/nvcc --version 2>/dev/null || true
} | sha256sum | cut -c1-16)
line="build --action_env=SYSDEPS=$hash"
if [ ! -f user.bazelrc ]; then
  echo "$line" >user.bazelrc
elif ! grep -qxF "$line" user.bazelrc; then
  # Lines that the user added stay.
  kept=$(grep -v -- '--action_env=SYSDEPS=' user.bazelrc || true)
  printf '%s\n' ${kept:+"$kept"} "$line" >user.bazelrc.new
  mv user.bazelrc.new user.bazelrc
fi
say "ready (library versions $hash)"
