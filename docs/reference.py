#!/usr/bin/env python3
"""The reference as HTML (make docs): a page for each op, made from its card and the headers, one
for each public header, and the contract. usage: reference.py FOLDER HEADER...

Nothing is written here that the sources do not say. What they lack - an op without a card, a field
without text, a NUMERICS section that is not there - is named, and the exit status is 1.
"""
import html
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIELDS = {"Shape": "Shapes", "Dtype": "Dtypes", "Bits": "Bits", "VJP": "Gradient",
          "Errors": "Errors", "Source": "Source"}
STYLE = """
:root { color-scheme: light dark; --fg: #1c1c1c; --bg: #fff; --dim: #666; --box: #f4f4f1; --a: #0b57a4 }
@media (prefers-color-scheme: dark) {
  :root { --fg: #ddd; --bg: #16181a; --dim: #999; --box: #212528; --a: #7db8f2 } }
body { font: 16px/1.5 Georgia, serif; color: var(--fg); background: var(--bg);
       max-width: 54em; margin: 2em auto; padding: 0 1em }
pre, code, .formula { font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace }
pre { background: var(--box); padding: .7em 1em; overflow-x: auto }
.formula { font-size: 15px } a { color: var(--a); text-decoration: none }
dt { font-weight: bold; margin-top: .8em } dd { margin: 0 0 0 1.5em }
nav, .from { color: var(--dim); font-size: 14px } table { border-spacing: 0 }
td { padding: .1em 1.2em .1em 0; vertical-align: top }
"""
missing = []


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


class Book:
    def __init__(self, folder, headers):
        self.folder = folder
        self.headers = {h: read(h) for h in headers}
        self.status = dict(re.findall(r'X\((E\w+), +"(.*?)"\)', self.headers["tensor/status.h"]))
        self.numerics = read("NUMERICS.md")
        self.sections = set(re.findall(r"^(?:#+ )?(\d+(?:\.\d+)*)[. ]", self.numerics, re.M))
        self.ops = self.index()
        self.files = {f: read("ops/" + f) for f in sorted(os.listdir(os.path.join(ROOT, "ops")))
                      if f.endswith(".c")}
        self.where = {}  # function or macro: its page
        for h, text in self.headers.items():
            for name in re.findall(r"\b(tl_\w+)\(", re.sub(r"/\*.*?\*/", "", text, flags=re.S)):
                self.where.setdefault(name, "%s#%s" % (page_of(h), name))
        for op in self.ops:
            self.where["tl_" + op] = op + ".html"

    def index(self):
        """{op: (section, as it is called, meaning)} from the head of ops.h."""
        head, body = self.headers["ops/ops.h"].split("*/", 1)
        lines = [line[3:] for line in head.split("\n")]
        entry = {op: "%s(%s)" % (op, args.replace(", ...", "")) for op, args in re.findall(
            r"^#define tl_(\w+)\(t, (.*?)\)\s", body, re.M)}
        ops = {}
        for op, call in entry.items():
            section = ""
            for i, line in enumerate(lines):
                title = re.match(r"([A-Z]\w+)( over dims)?[.:,]", line)
                section = title[1] if title else section
                met = re.search(r"(?<!\w)(%s|%s\([a-z.][^)]*\))(.*)" % (re.escape(call), op), line)
                if not met or not line.startswith("  ") or (
                        met[1] != call and any(call in x for x in lines)):
                    continue
                meaning = re.split(r"  +", met[2].strip())[0]
                if any(meaning.startswith(other) for other in entry.values()):
                    meaning = "" if met[2].startswith("  ") else \
                        re.split(r"  +", line.strip())[-1]
                n = i + 1
                while meaning and line.endswith(meaning) and n < len(lines) and \
                        lines[n].startswith(" " * 20):
                    line = meaning = meaning + " " + lines[n].strip()
                    n += 1
                ops[op] = (section, call, meaning)
                break
            else:
                missing.append("ops.h's index lacks " + op)
        return ops

    def link(self, text):
        """Prose: names of functions, errors and sections become links."""
        text = html.escape(text, quote=False)

        def number(m):
            if m[1] not in self.sections:
                missing.append("NUMERICS has no section " + m[1])
            return '<a href="numerics.html#n%s">%s</a>' % (m[1], m[0])
        text = re.sub(r"\bNUMERICS (\d+(?:\.\d+)*)", number, text)
        text = re.sub(r"\bTL_(E[A-Z]+)\b", lambda m: '<code title="%s">%s</code>' % (
            self.status.get(m[1], ""), m[0]), text)
        return re.sub(r"\btl_\w+", lambda m: '<a href="%s"><code>%s</code></a>' % (
            self.where[m[0]], m[0]) if m[0] in self.where else "<code>%s</code>" % m[0], text)

    def write(self, name, title, body):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as f:
            f.write('<!doctype html><html lang="en"><meta charset="utf-8"><title>%s</title>'
                    '<meta name="viewport" content="width=device-width"><style>%s</style>'
                    '<nav><a href="index.html">Tally</a></nav><h1>%s</h1>\n%s\n' % (
                        html.escape(title), STYLE, html.escape(title), body))

    def card(self, op):
        """(file, {field: text}) of the op's card: the last one above the op that names it, or the
        first of its file."""
        made_by = re.search(r"#define tl_%s\(t, [^\n]*?(?:\\\n)?.*?(?:TL_OP\((\w+)|tl_(\w+)_at\()" % op,
                            self.headers["ops/ops.h"])
        name = made_by[1] or made_by[2] if made_by else op
        for made in (r"^tl_(tensor|status) tl_%s_at\(", r"^const tl_op tl_op_%s = ", r"^[A-Z_]+\(%s[,)]"):
            for file, text in self.files.items():
                met = re.search(made % name, text, re.M)
                if met:
                    return file, self.fields(name, text[:met.start()])
        return None, {}

    def fields(self, op, text):
        """{field: text} of the last card in the text that names the op, or of the first."""
        cards = re.findall(r"/\*[- ]*((?:(?!\*/).)*?\n \* Shape:.*?)\*/", text, re.S)
        named = [c for c in cards if re.search(r"\b%s\b" % op, c.split("Shape:")[0])]
        lines = [x[3:] for x in ("   " + (named or cards[:1])[-1]).split("\n")]
        card, field = {"": [lines[0]]}, ""
        for line in lines[1:]:
            met = re.match(r"(%s):\s+(.*)" % "|".join(FIELDS), line)
            if met:
                field, line = met[1], met[2]
            elif field and line[:1] not in (" ", ""):
                field = "Note"
            card.setdefault(field, []).append(line.strip())
        return {k: " ".join(v).strip() for k, v in card.items()}

    def call(self, op):
        """The macro, the function and the options of an op, as the headers have them."""
        text = self.headers["ops/ops.h"]
        macro = re.search(r"#define (tl_%s\(.*?\))\s" % op, text)[1]
        whole = re.search(r"#define tl_%s\((?:.*\\\n)*.*" % op, text)[0]
        name = re.search(r"TL_OP\((\w+)|tl_(\w+)_at\(", whole)
        name = name[1] or name[2]
        proto = re.search(r"^tl_\w+ tl_%s_at\([^;]*;" % name, text, re.M)
        listed = re.search(r"#define TL_(UNARY|BINARY)_OPS(?:.*\\\n)*.*X\(%s\)" % name, text)
        proto = proto[0] if proto else "tl_tensor tl_%s_at(tl_at at, %s);" % (
            name, "tl_tensor x" if listed and listed[1] == "UNARY" else "tl_tensor a, tl_tensor b")
        options = re.findall(r"\b(tl_\w+_options)\b", proto)
        for o in options:
            body = re.search(r"typedef struct {\n((?:(?!typedef).)*?)} %s;" % o, text, re.S)
            proto += "\n\n/* options: .name = value */\n" + body[0] if body else ""
        return macro, proto

    def op_page(self, op):
        section, formula, meaning = self.ops[op]
        macro, proto = self.call(op)
        file, card = self.card(op)
        if not card:
            missing.append("%s has no card" % op)
        rows = []
        for field, title in FIELDS.items():
            if card.get(field):
                text = self.link(card[field])
                if field == "Errors":
                    codes = dict.fromkeys(re.findall(r"TL_(E\w+)", card[field]))
                    text += "<br>" + "; ".join("<code>TL_%s</code>: %s" % (
                        c, html.escape(self.status[c])) for c in codes)
                rows.append("<dt>%s<dd>%s" % (title, text))
        lacks = [f for f in FIELDS if f != "Source" and not card.get(f)]
        if lacks:
            missing.append("the card of %s (ops/%s) has no %s" % (op, file, ", ".join(lacks)))
        function = re.search(r"tl_(\w+)_at\((.*?)\);", proto, re.S)
        args = [re.split(r"[ *]", a.strip())[-1] for a in function[2].split(",")][1:]
        options = "_options" in function[2]
        python = "t.%s(%s)" % (function[1], ", ".join(args[:-1] + ["..."] if options else args))
        self.write(op + ".html", "tl_" + op, """
<p class="formula">%s &nbsp; %s</p><pre>%s</pre><pre>%s</pre>
<p>In Python <code>%s</code></p><dl>%s
<dt>Determinism<dd>The bits above are the same for any number of threads, vector level, compiler and
split into micro-batches, as far as <code>make contract</code> proves or tests them, axis by axis.
</dl><p>%s</p>
<p class="from">Card of <code>ops/%s</code>: %s</p>""" % (
            html.escape(formula), self.link(meaning), html.escape(macro), html.escape(proto),
            html.escape(python), "".join(rows), self.link(card.get("Note", "")), file,
            self.link(card.get("", ""))))

    def header_page(self, h, text):
        parts = []
        for block in re.split(r"\n[ \t]*\n", text):
            comment = re.match(r"\s*/\*(.*?)\*/\s*(.*)", block, re.S)
            prose, code = (comment[1], comment[2]) if comment else ("", block)
            code = re.sub(r"^(#(ifndef|define|endif|include)\b(?!.*\().*|TL_BEGIN|TL_END)\n?", "",
                          code, flags=re.M).strip()
            anchors = dict.fromkeys(re.findall(r"\b(tl_\w+)\(", code))
            parts.append("".join('<a id="%s"></a>' % a for a in anchors))
            prose = "\n".join(re.sub(r"^ ?\* ?", "", x) for x in prose.strip().split("\n"))
            for p in re.split(r"\n\n", prose):
                listing = re.search(r"^ {2,}", p, re.M)
                parts.append(("<pre>%s</pre>" if listing else "<p>%s</p>") % self.link(p)
                             if p.strip() else "")
            parts.append("<pre>%s</pre>" % html.escape(code) if code else "")
        self.write(page_of(h), h, "\n".join(parts))

    def numerics_page(self):
        parts, code = [], False
        for p in re.split(r"\n\n+", self.numerics):
            title = re.match(r"#+ (?:(\d+)\. )?(.*)", p)
            at = re.match(r"(\d+(?:\.\d+)+) ", p)
            at = '<a id="n%s"></a>' % (at[1] if at else title[1]) if at or title and title[1] else ""
            if title:
                parts.append("%s<h2>%s</h2>" % (at, html.escape(p.lstrip("# "))))
            elif p.startswith("    ") or "\n|" in p or p.startswith("|"):
                parts.append("<pre>%s</pre>" % html.escape(p))
            else:
                for one in re.split(r"\n(?=- |\d+\.\d+ )", p):
                    inner = re.match(r"(\d+(?:\.\d+)+) ", one)
                    text = re.sub(r"`(.*?)`", r"<code>\1</code>", html.escape(one, quote=False),
                                  flags=re.S)
                    parts.append(('<a id="n%s"></a>' % inner[1] if inner else at) + "<p>%s</p>" % text)
        self.write("numerics.html", "The numerics contract", "\n".join(parts))

    def index_page(self):
        sections = {}
        for op, (section, formula, meaning) in self.ops.items():
            sections.setdefault(section, []).append(
                '<tr><td><a href="%s.html"><code>%s</code></a><td>%s' % (
                    op, html.escape(formula), self.link(meaning)))
        body = "<p><a href='numerics.html'>The numerics contract</a>: which bits each op computes.</p>"
        body += "<h2>Headers</h2><table>"
        for h, text in self.headers.items():
            about = re.match(r"/\*\s*\S+?:\s+(.*?)(?:\.\s|\*/)", text, re.S)
            about = re.sub(r"\s*\n \*\s*", " ", about[1]) if about else ""
            body += '<tr><td><a href="%s"><code>%s</code></a><td>%s' % (page_of(h), h, self.link(about))
        body += "</table>" + "".join("<h2>%s</h2><table>%s</table>" % (s, "".join(rows))
                                     for s, rows in sections.items())
        others = sorted(n for n, p in self.where.items() if "#" in p and not n.endswith("_at"))
        body += "<h2>Other functions</h2><p>%s</p>" % " ".join(self.link(n) for n in others)
        self.write("index.html", "Tally: reference", body)


    def links(self):
        """Every link leads somewhere."""
        pages = {f: read(os.path.abspath(os.path.join(self.folder, f)))
                 for f in os.listdir(self.folder) if f.endswith(".html")}
        ids = {f: set(re.findall(r'id="(.*?)"', text)) for f, text in pages.items()}
        for f, text in pages.items():
            for page, _, at in re.findall(r"""href=["']([^"'#]*)(#([^"']*))?["']""", text):
                if page not in pages or at and at not in ids[page]:
                    missing.append("%s links to %s#%s" % (f, page, at))


def page_of(header):
    return header.replace("/", "_") + ".html"


def main(folder, headers):
    os.makedirs(folder, exist_ok=True)
    book = Book(folder, sorted(headers, key=lambda h: (not h.startswith("tally"), h)))
    for op in book.ops:
        book.op_page(op)
    for h, text in book.headers.items():
        book.header_page(h, text)
    book.numerics_page()
    book.index_page()
    book.links()
    for m in dict.fromkeys(missing):
        print("missing: " + m, file=sys.stderr)
    print("%d ops, %d headers: %s/index.html; %d missing" % (
        len(book.ops), len(book.headers), folder, len(dict.fromkeys(missing))))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
