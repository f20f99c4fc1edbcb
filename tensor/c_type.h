/* c_type.h: what the compiler knows of data, so that those that do not fit are refused. Public. */
#ifndef TL_C_TYPE_H
#define TL_C_TYPE_H

#include "tensor/array.h"
TL_BEGIN

/* The C type of elements: "float" for float *, float[6], float[2][3] and float[2][3][4], const or
 * not; "float *" for pointers to pointers; NULL (not checked) for void *, char * and all else. */
/* clang-format off */
#define TL_C_TYPES(X)                                                                           \
    X(float) X(double) X(signed char) X(short) X(int) X(long) X(long long) X(unsigned char)     \
    X(unsigned short) X(unsigned) X(unsigned long) X(unsigned long long)
#ifdef __cplusplus
extern "C++" {
template <class T> struct tl_c_type { static constexpr const char *name = nullptr; };
template <class T> struct tl_c_type<const T> : tl_c_type<T> {};
template <class T, size_t n> struct tl_c_type<T[n]> : tl_c_type<T> {};
template <class T, size_t n> struct tl_c_type<const T[n]> : tl_c_type<T> {};
#define TL_C_NAME(type)                                                                         \
    template <> struct tl_c_type<type> { static constexpr const char *name = #type; };          \
    template <> struct tl_c_type<type *> { static constexpr const char *name = #type " *"; };   \
    template <> struct tl_c_type<const type *> : tl_c_type<type *> {};
TL_C_NAME(bool) TL_C_TYPES(TL_C_NAME)
#undef TL_C_NAME
template <class T> tl_c_type<T> tl_c_type_of(T *);
tl_c_type<void> tl_c_type_of(decltype(nullptr));
}
#define TL_C_TYPE(data) decltype(tl_c_type_of(data))::name
#else
#define TL_C_CASE(type)                                                                         \
    type *: #type, const type *: #type, type (*)[]: #type, const type (*)[]: #type,             \
    type **: #type " *", type *const *: #type " *",                                             \
    const type **: #type " *", const type *const *: #type " *",
#define TL_C_TYPE(data)                                                                         \
    _Generic((data), TL_C_CASE(_Bool) TL_C_TYPES(TL_C_CASE)                                     \
        void *: (const char *)0, const void *: (const char *)0,                                 \
        default: _Generic(*_Generic((data), void *: "", const void *: "", default: (data)),     \
            TL_C_CASE(_Bool) TL_C_TYPES(TL_C_CASE) default: (const char *)0))
#endif
/* clang-format on */
typedef struct {
    const char *type; /* TL_C_TYPE */
    size_t bytes;     /* from there to the end of the object; below 16 or SIZE_MAX: not known */
} tl_c_data;
#define TL_C_DATA(data) (TL_MAKE(tl_c_data){TL_C_TYPE(data), __builtin_object_size((data), 0)})
TL_END
#endif
