#!/usr/bin/env bash
# usage: peers.sh DIR
#
# PyTorch, OpenBLAS and transformers, which the bench, tests/agree.py and tests/models.py compare
# with, into a virtual environment.
# PyTorch's package asks for gigabytes of libraries for graphics cards. On a processor none of their
# functions is called, but the linker wants to find them: all but the small one that counts the
# cards are stood in for by libraries of the same names whose functions do nothing.
set -euo pipefail
dir=$1
pip() { "$dir.part/bin/pip" install -q --disable-pip-version-check "$@"; }
stand_in() { # library, version of its symbols, names
    sed '/./s/.*/int &(void) { return 1; }/' <<< "$3" > stub.c
    echo "$2 { *; };" > stub.map
    cc -shared -fPIC -w -fno-builtin -Wl,--version-script=stub.map,-soname,"$1" -o "$1" stub.c
}

echo "installing PyTorch and OpenBLAS in $dir"
rm -rf "$dir" "$dir.part"
python3 -m venv "$dir.part"
pip filelock typing-extensions setuptools sympy networkx jinja2 fsspec scipy-openblas32 transformers
pip --no-deps torch nvidia-cuda-runtime
(
    cd "$dir.part"/lib/python3*/site-packages/torch/lib
    wanting=$(ls libtorch*.so libc10*.so)
    nm -D --undefined-only $wanting | awk '/ [Uw] / { print $2 }' | sort -u > names
    needed=$(readelf -d $wanting | sed -n 's/.*NEEDED.*\[\(lib\(cu\|nv\|nccl\)[^]]*\)\]/\1/p')
    for lib in $(sort -u <<< "$needed"); do
        case $lib in
        libcudart*) ;;
        libcufile*) stand_in "$lib" "$lib" "$(grep -E '^(cu|nccl)\w*$' names)" ;; # no version
        libnvshmem*) stand_in "$lib" NVSHMEM "$(sed -n 's/@NVSHMEM$//p' names)" ;;
        *) stand_in "$lib" "$lib" "$(sed -n "s/@$lib\$//p" names)" ;;
        esac
    done
    rm -f names stub.c stub.map
)
"$dir.part/bin/python" -W ignore -c "import torch; torch.ones(2).sum()"
(cd "$dir.part" && ln -s lib/*/site-packages/scipy_openblas32/lib/libscipy_openblas.so openblas.so)
mv "$dir.part" "$dir" # whole or not at all
