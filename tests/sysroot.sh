#!/usr/bin/env bash
# usage: sysroot.sh aarch64|riscv64|s390x DIR
#
# Unpacks the libraries that a build for that processor links into DIR, from Debian's archive,
# with an apt configuration of its own: the system's list of packages is not touched.
set -euo pipefail
suite=trixie # the first release with all three
packages="libc6-dev libgomp1 libatomic1 libjansson-dev libssl-dev zlib1g-dev libxxhash-dev libcmocka-dev libmpfr-dev"
case $1 in aarch64) arch=arm64 ;; *) arch=$1 ;; esac
dir=$2 apt=$2.apt
mkdir -p "$apt"/{lists,archives}/partial
: > "$apt/status"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [arch=$arch signed-by=$keys] http://deb.debian.org/debian $suite main" > "$apt/sources.list"
options=(-qq -o APT::Architecture="$arch" -o APT::Architectures::="$arch" -o Dir::State="$apt" -o Dir::State::status="$apt/status"
         -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt" -o Dir::Etc::sourcelist="$apt/sources.list"
         -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root)

echo "fetching libraries for $1 ($packages)"
apt-get "${options[@]}" update
apt-get "${options[@]}" install -y --no-install-recommends --download-only $packages > /dev/null
mkdir -p "$apt/root"
for deb in "$apt"/archives/*.deb; do
    dpkg-deb -x "$deb" "$apt/root"
done
[ -e "$apt/root/lib" ] || ln -s usr/lib "$apt/root/lib"
rm -rf "$dir"
mv "$apt/root" "$dir" # whole or not at all
touch "$dir"
rm -rf "$apt"
