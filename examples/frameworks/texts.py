"""Python's language reference as text for the examples: as bytes, and by a tokenizer made of it."""

from functools import cache
from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def text() -> str:
    return "\n".join(topics.values())


def pieces(first: int, count: int, length: int) -> list[dict[str, list[int]]]:
    """`count` pieces of text as lists of `length` bytes, with themselves as labels."""
    taken = text().encode()[first * length : (first + count) * length]
    rows = [list(taken[start : start + length]) for start in range(0, len(taken), length)]
    return [{"input_ids": row, "labels": row} for row in rows]


def sentences(first: int, count: int) -> list[str]:
    """`count` lines of some length."""
    lines = [line.strip() for line in text().splitlines() if 30 < len(line.strip()) < 90]
    return lines[first : first + count]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 512 words, with the special ones of BERT."""
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        sentences(0, 800), trainers.BpeTrainer(vocab_size=512, special_tokens=SPECIAL, show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", made.token_to_id("[CLS]")), ("[SEP]", made.token_to_id("[SEP]"))],
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]", bos_token="[CLS]", eos_token="[SEP]",
                                   model_max_length=64)  # fmt: skip
