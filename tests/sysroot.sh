#!/usr/bin/env bash
# usage: sysroot.sh aarch64|riscv64|s390x DIR
#
# Unpacks the libraries that a build for that processor links into DIR, from Debian's archive,
# with apt configurations of its own: the system's list of packages is not touched. A mirror can
# stand for days with lists of one suite that do not fit its signed index; then the next suite
# serves as well: any of these has all three processors.
set -euo pipefail
suites="trixie forky sid"
packages="libc6-dev libatomic1 libjansson-dev libssl-dev zlib1g-dev libxxhash-dev libcmocka-dev libmpfr-dev"
case $1 in aarch64) arch=arm64 ;; *) arch=$1 ;; esac
dir=$(realpath -m "$2") apt=$dir.apt
keys=/usr/share/keyrings/debian-archive-keyring.gpg
trap 'rm -rf "$apt"' EXIT

download() { # of suite $1, to $apt/archives
    rm -rf "$apt"
    mkdir -p "$apt"/{lists,archives}/partial
    : > "$apt/status"
    echo "deb [arch=$arch signed-by=$keys] http://deb.debian.org/debian $1 main" > "$apt/sources.list"
    local options=(-qq -o APT::Architecture="$arch" -o APT::Architectures::="$arch" -o Dir::State="$apt"
                   -o Dir::State::status="$apt/status" -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt"
                   -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
                   -o APT::Sandbox::User=root -o Acquire::Retries=3)
    apt-get "${options[@]}" update &&
        apt-get "${options[@]}" install -y --no-install-recommends --download-only $packages > /dev/null
}

for suite in $suites none; do
    [ $suite != none ] || { echo "sysroot.sh: no suite of Debian's ($suites) gave the libraries for $1" >&2; exit 1; }
    echo "fetching libraries for $1 from $suite ($packages)"
    download $suite && break
done
mkdir -p "$apt/root"
for deb in "$apt"/archives/*.deb; do
    dpkg-deb -x "$deb" "$apt/root"
done
[ -e "$apt/root/lib" ] || ln -s usr/lib "$apt/root/lib"
rm -rf "$dir"
mv "$apt/root" "$dir" # whole or not at all
touch "$dir"
