"""model.py DIR: a Qwen3 of random weights so small that a CPU serves it: its configuration, a tokenizer trained here on
text made here, and a chat template that renders system text, then tools, then the messages. No weights: vLLM draws them."""
import json
import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

out = sys.argv[1]
if os.path.exists(f"{out}/config.json"):
    sys.exit(0)
os.makedirs(out, exist_ok=True)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

words = ("the of and to in a is that for it as was with be by on not he his but at are this have from or had an "
         "they which one you were all her she there would their we him been has when who will no more if out so "
         "system user assistant message token cache block prefix router model server request answer question "
         "hello world weather city paris london number count tool call function result please tell explain write").split()
text = [" ".join(words[(i * 7 + j * j) % len(words)] for j in range(40)) + ".\n" for i in range(400)]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(text, trainers.BpeTrainer(
    vocab_size=1024, special_tokens=SPECIAL, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tokenizer.save(f"{out}/tokenizer.json")

CHAT = (
    "{%- set n = 1 if messages[0].role == 'system' else 0 -%}"
    "{%- if n -%}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif -%}"
    "{%- if tools -%}<|im_start|>system\n# Tools{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|im_end|>\n{% endif -%}"
    "{%- for m in messages[n:] -%}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{%- for c in m.tool_calls or [] -%}\n<tool_call>\n{{ c.function | tojson }}\n</tool_call>{%- endfor -%}"
    "<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)
ids = {t: tokenizer.token_to_id(t) for t in SPECIAL}


def dump(name, value):
    with open(f"{out}/{name}", "w") as f:
        json.dump(value, f, indent=1)


dump("tokenizer_config.json", {
    "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
    "clean_up_tokenization_spaces": False, "model_max_length": 8192, "chat_template": CHAT})
dump("generation_config.json", {"eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]})
dump("config.json", {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "float32",
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": False,
    "attention_dropout": 0.0, "tie_word_embeddings": True, "use_sliding_window": False,
    "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]})
