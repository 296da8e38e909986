# shellcheck shell=sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Read by test.sh and aarch64.sh, whose $cache is the cache folder. Much is compiled in several builds, which ccache finds:
# it keeps that in the cache, and is installed where that can be done. Without it things only take longer.
export CCACHE_DIR="${cache:?}/ccache" CCACHE_BASEDIR="$cache/build" CCACHE_NOHASHDIR=1
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v ccache >/dev/null; then
    echo "Installing ccache"
    apt-get -qq update || :
    DEBIAN_FRONTEND=noninteractive apt-get -qqy install --no-install-recommends ccache >/dev/null ||
        echo "ccache could not be installed (see above why): going on without it" >&2
fi
