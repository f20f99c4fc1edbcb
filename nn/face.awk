# face.awk: makes nn/face.inc, which bind.c includes, from the preprocessed public headers: their
# declarations as one string, without those of system headers, and the names of the types they
# define. `face` holds the headers' names.
/^#/ {
    if ($2 ~ /^[0-9]+$/)
        ours = $3 !~ /^"[\/<]/
    next
}
!ours || !NF { next }
{
    if ($0 ~ /^} *tl_[a-z0-9_]+;$/) {
        name = $0
        gsub(/[};[:space:]]/, "", name)
        types = types " X(" name ")"
    }
    gsub(/[\\"]/, "\\\\&")
    text = text "\n    \"" $0 "\\n\""
}
END {
    n = split(face, header, " ")
    for (i = 1; i <= n; i++)
        print "#include \"" header[i] "\""
    print "static const char tl_face_text[] =" text ";\n#define FACE_TYPES(X)" types
}
