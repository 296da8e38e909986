# shellcheck shell=sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Other scripts source this file, and set $cache to the cache folder and $packages to what else they need. Several builds compile the same files, also those on
# test hosts, so ccache keeps the results in the cache. Some tests compile for the other architecture. If possible, this
# installs ccache, CMake and the cross compiler. Without ccache builds only take longer. Without a cross compiler the tests that
# need one are skipped.
export CCACHE_DIR="${cache:?}/ccache" CCACHE_BASEDIR="$cache" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=locale
missing=
for package in ${packages:-}; do
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -q '^installed' || missing="$missing $package"
done
[ -x /usr/bin/ccache ] || missing="$missing ccache"
[ -x /usr/bin/cmake ] || missing="$missing cmake"
[ "$(uname -m)" != x86_64 ] || command -v aarch64-linux-gnu-g++ >/dev/null || missing="$missing g++-aarch64-linux-gnu"
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing $missing"
    apt-get -qq update || :
    # shellcheck disable=SC2086 # two words are two packages
    DEBIAN_FRONTEND=noninteractive apt-get -qqy install --no-install-recommends $missing >/dev/null ||
        echo "$missing could not be installed (see above why): going on without" >&2
fi
mkdir -p "$cache/test/bin"
cp -f tests/support/ccache.sh "$cache/test/bin/ccache.$$" && mv "$cache/test/bin/ccache.$$" "$cache/test/bin/ccache"
PATH=$cache/test/bin:$PATH
# The system's CMake goes first, as on test hosts: another version gives options in another order, and ccache finds nothing.
[ ! -x /usr/bin/cmake ] || ln -sf /usr/bin/cmake "$cache/test/bin"
