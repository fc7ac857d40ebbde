#!/usr/bin/env python3
"""Makes minilm.json: what all-MiniLM-L6-v2 says of some texts, computed without any code of ours.

    pip install numpy tokenizers
    tests/data/minilm.py .tools/models/all-minilm-l6-v2 > tests/data/minilm.json

Word pieces are those of the reference tokenizer, vectors those of the network written down in numpy in double
precision: padded batches, attention masked, mean over the mask, length 1. Read by shared/src/embed/minilm/tests.rs.
`--quality` prints how well the vectors alone answer the labelled queries of search.json instead.
"""

import json
import math
import pathlib
import struct
import sys

import numpy
import tokenizers

MAX_PIECES = 256

# Texts whose vectors are kept, and below texts of which the pieces alone are.
EMBEDDED = [
    "The train to Milwaukee was cancelled, we are taking the bus instead.",
    "Your verification code is 482913. It expires in ten minutes.",
    "Café déjà vu: naïve Ærøskøbing, ÅNGSTRÖM",
    "ok",
    "The production database ran out of disk space at 03:12; writes failed for eleven minutes. " * 24,
]
SPLIT = [
    "",
    "   \t\n ",
    "don't@example.com/path?query=1&x=[y] #tag ~tilde^",
    "東京は夜の七時 and 北京",
    "İstanbul ŞIŞLI ǆ ﬁne ½ ²",
    "e\u0301clair n\u0303 o\u0308 \u1e9e Straße",
    "zero\u200bwidth\u200djoiner soft\u00adhyphen nul\u0000 bad\ufffd bell\u0007",
    "👋🏽 hello 🚀 → “quotes” — dash… €5",
    "नमस्ते दुनिया สวัสดี привет мир Ёлка",
    "한국어 텍스트 각",
    "a" * 100 + " " + "b" * 101,
    "unaffable antidisestablishmentarianism xqzvk",
    "no\u00a0break\u3000wide\u2028line",
]


def weights(folder):
    with open(folder / "model.safetensors", "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    header.pop("__metadata__", None)
    kinds = {"F32": numpy.float32, "I64": numpy.int64}
    return {
        name: numpy.frombuffer(data[slice(*entry["data_offsets"])], kinds[entry["dtype"]])
        .reshape(entry["shape"])
        .astype(numpy.float64)
        for name, entry in header.items()
    }


# A network small enough to be made up, with its weights: the same in shared/src/embed/minilm/tests.rs.
TINY = {"num_attention_heads": 2, "num_hidden_layers": 2, "layer_norm_eps": 1e-12}
TINY_WIDTH, TINY_INNER, TINY_PIECES, TINY_PLACES = 8, 16, 8, 6
TINY_TEXTS = [[2, 4, 6, 3], [2, 3], [2, 5, 4, 7, 1, 3]]


def tiny_weights():
    shapes = {
        "embeddings.word_embeddings.weight": (TINY_PIECES, TINY_WIDTH),
        "embeddings.position_embeddings.weight": (TINY_PLACES, TINY_WIDTH),
        "embeddings.token_type_embeddings.weight": (2, TINY_WIDTH),
    }
    parts = {
        "attention.self.query": (TINY_WIDTH, TINY_WIDTH),
        "attention.self.key": (TINY_WIDTH, TINY_WIDTH),
        "attention.self.value": (TINY_WIDTH, TINY_WIDTH),
        "attention.output.dense": (TINY_WIDTH, TINY_WIDTH),
        "attention.output.LayerNorm": (TINY_WIDTH,),
        "intermediate.dense": (TINY_INNER, TINY_WIDTH),
        "output.dense": (TINY_WIDTH, TINY_INNER),
        "output.LayerNorm": (TINY_WIDTH,),
    }
    all_parts = {"embeddings.LayerNorm": (TINY_WIDTH,)}
    for layer in range(TINY["num_hidden_layers"]):
        all_parts |= {f"encoder.layer.{layer}.{part}": shape for part, shape in parts.items()}
    for part, shape in all_parts.items():
        shapes |= {f"{part}.weight": shape, f"{part}.bias": (shape[0],)}
    made = {}
    for place, name in enumerate(sorted(shapes)):
        size = 0.1 if name.endswith(".bias") else 1.0
        values = [math.sin(0.7 * (place + 1) + 1.3 * at) * size for at in range(math.prod(shapes[name]))]
        made[name] = numpy.array(values, numpy.float32).astype(numpy.float64).reshape(shapes[name])
    return made


class Model:
    def __init__(self, config, weights, tokenizer=None):
        self.config, self.weights, self.tokenizer = config, weights, tokenizer
        self.erf = numpy.vectorize(math.erf)

    @classmethod
    def read(cls, folder):
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_PIECES)
        return cls(json.loads((folder / "config.json").read_text()), weights(folder), tokenizer)

    def pieces(self, text):
        return self.tokenizer.encode(text).ids

    def linear(self, name, x):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, name, x):
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        x = (x - mean) / numpy.sqrt(var + self.config["layer_norm_eps"])
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def embed(self, texts):
        return self.embed_pieces([self.pieces(text) for text in texts])

    def embed_pieces(self, ids):
        longest = max(map(len, ids))
        mask = numpy.array([[1.0] * len(row) + [0.0] * (longest - len(row)) for row in ids])
        ids = numpy.array([row + [0] * (longest - len(row)) for row in ids])
        x = self.weights["embeddings.word_embeddings.weight"][ids]
        x = x + self.weights["embeddings.position_embeddings.weight"][:longest]
        x = self.norm("embeddings.LayerNorm", x + self.weights["embeddings.token_type_embeddings.weight"][0])
        heads = self.config["num_attention_heads"]

        def split(y):
            return y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)

        for layer in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}"
            q, k, v = (split(self.linear(f"{at}.attention.self.{part}", x)) for part in ("query", "key", "value"))
            scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]) + (mask - 1)[:, None, None, :] * 1e9
            scores = numpy.exp(scores - scores.max(-1, keepdims=True))
            seen = scores / scores.sum(-1, keepdims=True) @ v
            seen = self.linear(f"{at}.attention.output.dense", seen.transpose(0, 2, 1, 3).reshape(x.shape))
            x = self.norm(f"{at}.attention.output.LayerNorm", x + seen)
            wide = self.linear(f"{at}.intermediate.dense", x)
            wide = wide * 0.5 * (1.0 + self.erf(wide / math.sqrt(2.0)))
            x = self.norm(f"{at}.output.LayerNorm", x + self.linear(f"{at}.output.dense", wide))
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return mean / numpy.linalg.norm(mean, axis=1, keepdims=True)


def quality(model):
    labelled = json.loads((pathlib.Path(__file__).parent / "search.json").read_text())
    documents = model.embed([text for _, _, text in labelled["documents"]])
    ranks = {}
    for query, answers, kind in labelled["queries"]:
        order = numpy.argsort(-(documents @ model.embed([query])[0]))
        names = [labelled["documents"][at][0] for at in order]
        first = next(place for place, name in enumerate(names) if name in answers)
        ranks.setdefault(kind, []).append(1.0 / (first + 1))
    for kind, found in ranks.items():
        print(f"{kind}: MRR {sum(found) / len(found):.3f} of {len(found)}")
    every = sum(ranks.values(), [])
    print(f"all: MRR {sum(every) / len(every):.3f}")


def main():
    model = Model.read(pathlib.Path(sys.argv[1]))
    if "--quality" in sys.argv:
        return quality(model)
    vectors = model.embed(EMBEDDED)
    print('{\n"embedded": [')
    rows = [
        json.dumps({"text": text, "pieces": model.pieces(text), "vector": [round(float(v), 6) for v in vector]})
        for text, vector in zip(EMBEDDED, vectors)
    ]
    print(",\n".join(rows))
    print('],\n"split": [')
    print(",\n".join(json.dumps({"text": text, "pieces": model.pieces(text)}) for text in SPLIT))
    print('],\n"tiny": [')
    rows = zip(TINY_TEXTS, Model(TINY, tiny_weights()).embed_pieces(TINY_TEXTS))
    print(",\n".join(json.dumps({"pieces": ids, "vector": [round(float(v), 6) for v in row]}) for ids, row in rows))
    print("]\n}")


if __name__ == "__main__":
    main()
