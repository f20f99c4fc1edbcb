/* fuzz_safetensors.c: libFuzzer's entry. Any bytes are refused or open well-formed.
 * Build with clang -fsanitize=fuzzer,address,undefined. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/safetensors_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tl_status status;
    if (!safetensors_sound(data, size, &status))
        abort();
    return 0;
}
