#!/usr/bin/env bash
# usage: install.sh BUILD      (make installed)
#
# Installs into an empty folder and uses what is there as a stranger would: README's program by
# pkg-config, shared and static, in C and in C++; libtally.so opened in a process that has no jemalloc; and nothing
# left after make uninstall.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 cc=${CC:-cc} passed=0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
ok() { passed=$((passed + 1)); echo "ok: $*"; }

make -s BUILD="$build" DESTDIR="$dir/to" PREFIX=/opt/tally install > /dev/null
export PKG_CONFIG_PATH="$dir/to/opt/tally/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$dir/to"
lib=$dir/to/opt/tally/lib
[ "$(pkg-config --modversion tally)" = "$(sed -n 's/^#define TL_VERSION "\(.*\)"/\1/p' tally.h)" ]
ok "pkg-config knows the version"

awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' README.md > "$dir/signs.c"
(
    cd "$dir" # outside the tree: what is missing in the installed headers is missing here
    # shellcheck disable=SC2046
    $cc signs.c $(pkg-config --cflags --libs tally) -o signs
    LD_LIBRARY_PATH=$lib ./signs > shared.txt
    # shellcheck disable=SC2046
    $cc signs.c $(pkg-config --cflags tally) "$lib/libtally.a" \
        $(pkg-config --static --libs tally | sed 's/-ltally//') -o signs-static
    ./signs-static > static.txt
    [ "$(wc -l < shared.txt)" = 5 ] && cmp shared.txt static.txt
)
ok "README's program, shared and static, prints the same"

for h in tensor/array.h tensor/status.h autograd/tape.h ops/ops.h nn/nn.h; do
    mkdir -p "$dir/${h%/*}"
    echo '#error "a header of the program, not of the library"' > "$dir/$h"
done
# shellcheck disable=SC2046
(cd "$dir" && $cc -I. -c signs.c $(pkg-config --cflags tally) -o signs.o)
ok "a program may have folders of its own that are named as the library's"

cat > "$dir/group.c" << 'END'
#include <nn/group/group.h>
#include <tally.h>
int main(void)
{
    tl_link link;
    tl_err e = {.status = TL_OK};
    if (tl_link_mpi(&link, 0, &e) != TL_OK)
        return 1;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_group *g = tl_group_new(t, link);
    const int bad = tl_group_take(g, 5).n != 5 || tl_group_fold(g) != TL_OK || tl_group_share(g) != TL_OK;
    tl_group_free(g);
    tl_free(t, m);
    return bad;
}
END
mpi=$(cut -d' ' -f2 "$build/mpi")
grep -q ^1 "$build/mpi" || mpi=
(
    cd "$dir"
    # shellcheck disable=SC2046
    $cc group.c $(pkg-config --cflags tally) -L"$lib" -ltally_group $(pkg-config --libs tally) \
        ${mpi:+$(pkg-config --libs "$(echo "$mpi" | sed s/openmpi/ompi-c/)")} -o group
    LD_LIBRARY_PATH=$lib ./group
)
ok "a program of a group, of one process"

for program in "$dir"/to/opt/tally/bin/*; do
    [ -s "$dir/to/opt/tally/share/man/man1/$(basename "$program").1" ]
done
ok "each program has a man page"

sed 's/= ctx;/= static_cast<tl_model *>(ctx);/' "$dir/signs.c" > "$dir/signs-cpp.cpp"
for cxx in g++ clang++; do
    command -v $cxx > /dev/null || { echo "skipped: $cxx is not there"; continue; }
    (
        cd "$dir"
        # shellcheck disable=SC2046
        $cxx -I. -std=c++20 signs-cpp.cpp $(pkg-config --cflags --libs tally) -o signs-cpp
        LD_LIBRARY_PATH=$lib ./signs-cpp | cmp - shared.txt
    )
    ok "in C++ by $cxx it prints that, too"
done

cat > "$dir/open.c" << 'END'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    void *lib = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    const char *(*allocator)(void) = lib == NULL ? NULL : dlsym(lib, "tl_allocator");
    puts(allocator == NULL ? dlerror() : allocator());
    return allocator == NULL;
}
END
$cc "$dir/open.c" -ldl -o "$dir/open"
[ "$("$dir/open" "$lib/libtally.so.0")" = aligned_alloc ]
ok "libtally.so opens in a process without jemalloc, and says so"

make -s BUILD="$build" DESTDIR="$dir/to" PREFIX=/opt/tally uninstall
[ -z "$(find "$dir/to/opt/tally" -mindepth 1 -print -quit 2> /dev/null)" ]
ok "uninstalling leaves nothing"
echo "$passed passed, 0 failed"
