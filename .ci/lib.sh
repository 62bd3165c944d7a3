# What .ci/engine and images/base/build share: a timed step, and Debian packages from the mirror that apt already uses.
# shellcheck shell=bash

# what this machine lacks and the release after Debian 12 has
NEXT_RELEASE=trixie
DEBIAN_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# dockerd, debootstrap and iptables live in sbin, which `su` leaves out
PATH=$PATH:/usr/sbin:/sbin

have() { command -v "$1" >/dev/null 2>&1; }

# timed "what" command...: one line for a long quiet step: what it does, a dot every 5 s, how long it took.
# The command's output is shown only when it fails; the exit code is the command's.
timed() (
  what=$1 log=$(mktemp) code=0
  shift
  printf '%s ' "$what"
  # the sleep must not hold our stdout: `make setup | tee` would wait for it
  while sleep 5 >/dev/null 2>&1; do printf '. '; done &
  # shellcheck disable=SC2064
  trap "kill $! 2>/dev/null; rm -f '$log'" EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  SECONDS=0
  "$@" </dev/null >"$log" 2>&1 || code=$?
  if [ "$code" -eq 0 ]; then
    printf '%s s\n' "$SECONDS"
  else
    printf 'failed after %s s with exit code %s\n' "$SECONDS" "$code"
    tail -n 40 "$log" >&2
  fi
  exit "$code"
)

on_debian() { [ -r /etc/debian_version ] && have apt-get && [ -r "$DEBIAN_KEYRING" ]; }
is_root() { [ "$(id -u)" -eq 0 ]; }

# The address of the main archive, read from apt's own sources; no package list has to be there yet.
debian_mirror() {
  local codename uris
  codename=$(. /etc/os-release && printf %s "$VERSION_CODENAME")
  uris=$(apt-get update --print-uris)
  # only the main archive has an -updates suite; a third party's repository may share the code name
  {
    sed -n "s|^'\(.*\)/dists/$codename-updates/.*InRelease'.*|\1|p" <<<"$uris"
    sed -n "s|^'\(.*\)/dists/$codename/.*InRelease'.*|\1|p" <<<"$uris"
  } | head -n 1
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  local install=(apt-get install -y --no-install-recommends "$@")
  # lists that are missing or older than the mirror fail the first try
  "${install[@]}" || { apt-get update && "${install[@]}"; }
}

# unpack_debs DIR PACKAGE...: packages of the next release, unpacked to DIR and not installed; the machine's apt state
# is not touched, and it needs no root.
unpack_debs() (
  dir=$1 mirror=$(debian_mirror)
  shift
  [ -n "$mirror" ] || { echo "apt's sources name no Debian archive" >&2; exit 1; }
  state=$(mktemp -d)
  trap 'rm -rf "$state"' EXIT
  mkdir -p "$state/lists/partial" "$state/cache" "$state/debs" "$dir"
  echo "deb [signed-by=$DEBIAN_KEYRING] $mirror $NEXT_RELEASE main" >"$state/sources.list"
  options=(
    -o "Dir::State=$state" -o "Dir::State::status=/dev/null" -o "Dir::Cache=$state/cache"
    -o "Dir::Etc::sourcelist=$state/sources.list" -o "Dir::Etc::sourceparts=-"
    # the user _apt may not enter our directory
    -o "APT::Sandbox::User=$(id -un)"
  )
  apt-get "${options[@]}" update || exit
  cd "$state/debs" && apt-get "${options[@]}" download "$@" || exit
  for deb in *.deb; do dpkg-deb -x "$deb" "$dir" || exit; done
)
