"""models.py make DIR: small random models of transformers in folders, each with ids and logits.
models.py load DIR: the same models as Tally has saved them give the same logits there.
models.py tokens DIR: tokenizers of GPT-2's and Llama 3's kind, and hard texts with their tokens.
models.py corpus tests/corpus: the same, small.
Ends with 77 where a package is missing."""

import json
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file, save_file
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers import processors, trainers
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig
except ImportError as missing:
    print(missing)
    sys.exit(77)

torch.set_num_threads(1)
root = Path(sys.argv[2])
LLAMA = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=256,
    rope_theta=10000.0,
    initializer_range=0.15,
)
LONG = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
CASES = {
    "llama3": LlamaConfig(**LLAMA, rope_scaling=LONG, tie_word_embeddings=True),
    "linear": LlamaConfig(**LLAMA, rope_scaling=dict(rope_type="linear", factor=4.0)),
    "plain": LlamaConfig(**{**LLAMA, "num_key_value_heads": 6, "rms_norm_eps": 1e-5}),
    "gpt2": GPT2Config(
        vocab_size=97, n_embd=48, n_layer=3, n_head=4, n_positions=64, initializer_range=0.15
    ),
}


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(ids).logits


def make():
    for name, config in CASES.items():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config)
        for key, p in model.named_parameters():
            if p.ndim == 1:
                p.data += 0.1 * torch.randn_like(p)
        ids = torch.randint(config.vocab_size, (2, 60))
        shards = "60KB" if name == "plain" else "1GB"
        model.save_pretrained(root / name, max_shard_size=shards)
        save_file({"ids": ids, "logits": logits(model, ids)}, root / name / "check.safetensors")


def load():
    for name in CASES:
        want = load_file(root / name / "check.safetensors")
        model = AutoModelForCausalLM.from_pretrained(root / f"{name}.ours", dtype=torch.float32)
        off = (logits(model, want["ids"]) - want["logits"]).abs().max() / want["logits"].abs().max()
        print(f"{name}: saved by Tally, loaded by transformers: {off:.1e}")
        assert off < 1e-6


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SCRIPTS = """The quick brown fox jumps over the lazy dog, doesn't it? WE'VE, we'Ll, 'S 'ſ x'K.
Съешь же ещё этих мягких французских булок, да выпей чаю
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία
אני יכול לאכול זכוכית וזה לא מזיק לי
أنا قادر على أكل الزجاج و هذا لا يؤلمني ١٢٣٤٥
मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती १२३
ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ
我能吞下玻璃而不伤身体。一二三〇〡 私はガラスを食べられます。それは私を傷つけません
나는 유리를 먹을 수 있어요. 그래도 아프지 않아요
Կրնամ ապակի ուտել ܐܢܐ ಕನ್ನಡ ქართული አማርኛ ខ្មែរ 𐌼𐌰𐌲 ᚠᛇᚻ 𝔘𝔫𝔦 𒀀𒁀
Cafe\u0301 e\u0301\u0302\u0303 a\u200db \u0301x Z\u0327a\u0300lgo 1\u03012 ½ Ⅷ ² ٣ 12345678 1,234.56
👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️‍🔥 😀😀😀 #️⃣ \U0001f468\U0001f3ff‍🚀 ☕︎
def f(x):\n\treturn  x**2  # a\n\n\n    if x:   \n\r\n\r\n  end\t\t \t
a b c　d e\u0085f\u200bg\ufeffh \u1680i\u2028j\u2029  k  \x1c\x1d \x0b\x0c.
<|endoftext|>x<|endoftext|><|endof<|begin|>text|> <|begin|> $$$ !!!\n\n... '''tis '' 's"""


def tokens(small=False):
    texts = SCRIPTS.split("\n") + [SCRIPTS, "", " ", "\n", "  \n \n  x", SCRIPTS * 3]
    texts = texts[:-1] if small else texts
    seed = 1
    alphabet = sorted(set(SCRIPTS)) + list(" \n'\tst019") * 12
    for n in range(0 if small else 3000):  # any order of these characters
        text = ""
        for _ in range(n % 40):
            seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
            text += alphabet[(seed >> 33) % len(alphabet)]
        texts.append(text)
    for kind, pattern in ("gpt2", GPT2), ("llama3", LLAMA3):
        k = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
        by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
        split = pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
        k.pre_tokenizer = (
            by_bytes if kind == "gpt2" else pre_tokenizers.Sequence([split, by_bytes])
        )
        k.decoder = decoders.ByteLevel()
        source = [SCRIPTS] if small else [SCRIPTS] + [p.read_text() for p in sorted(Path(__file__).parent.glob("*.py"))]
        k.train_from_iterator(
            source,
            trainers.BpeTrainer(
                vocab_size=400 if small else 1500,
                show_progress=False,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            ),
        )
        k.add_special_tokens(["<|endoftext|>", "<|begin|>"])
        k.add_tokens([AddedToken("<|endof", normalized=True), AddedToken("$$", normalized=True)])
        if kind == "llama3":
            around = processors.TemplateProcessing(
                single="<|begin|> $A", special_tokens=[("<|begin|>", k.token_to_id("<|begin|>"))]
            )
            k.post_processor = processors.Sequence([processors.ByteLevel(), around])
        k.save(str(root / f"{kind}.tokenizer.json"), pretty=not small)
        with open(root / f"{kind}.tokens", "w", encoding="utf-8", newline="") as f:
            for text in texts:
                ids = k.encode(text).ids
                plain = k.encode(text, add_special_tokens=False).ids
                f.write(json.dumps([text, ids, plain], ensure_ascii=False) + "\n")


{"make": make, "load": load, "tokens": tokens, "corpus": lambda: tokens(True)}[sys.argv[1]]()
