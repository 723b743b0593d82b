#include "common/known_maps.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/names.h"
#include "common/text.h"

namespace statcollect {
namespace {

enum Implementation : std::uint8_t { kHf, kMegatron, kTorchtitan, kVllm, kImplementations };
constexpr std::array<std::string_view, kImplementations> kWords = {"hf", "megatron", "torchtitan",
                                                                   "vllm"};

// What a row of the table is about.
enum Of : std::uint8_t {
  kModule,     // a module's outputs and their gradients, and its weight and bias
  kOutput,     // outputs and their gradients only
  kParameter,  // a parameter, or an input of the model
};
enum Flag : std::uint8_t {
  kPlain = 0,
  kRotary = 1,  // torchtitan has the rows of each head in another order, for its rotary embedding
  kTransposed = 2,    // Hugging Face stores the matrix transposed (Conv1D)
  kVocabulary = 4,    // Megatron-Core pads the vocabulary
  kInterleaved = 16,  // Megatron-Core has q, k and v head by head, Hugging Face one after the other
  kOtherOutput =
      32,  // the outputs differ: Megatron-Core adds the bias later, or has a row for each sequence
  kMayBeFused = 8,  // some variants compute it inside of another module and have no output of it
};

// One module by its name in each implementation; empty: not there. # is the number of the layer.
// Several names, separated by commas: the parts of what is one module elsewhere. vLLM has the names
// of Hugging Face, except where a row ends with one for it.
struct Row {
  constexpr Row(Of what, std::uint8_t flags_of, std::array<std::string_view, kVllm> three)
      : Row(what, flags_of, three, three[kHf]) {}
  constexpr Row(Of what, std::uint8_t flags_of, std::array<std::string_view, kVllm> three,
                std::string_view vllm)
      : of(what), flags(flags_of), names{three[kHf], three[kMegatron], three[kTorchtitan], vllm} {}

  Of of;
  std::uint8_t flags;
  std::array<std::string_view, kImplementations> names;
};

// Megatron-Core's linear_qkv holds, for each query group, the rows of its query heads, then those
// of its key and its value; linear_fc1 the gate, then the other half. With Transformer Engine,
// LayerNorms are part of the linear layer behind them.
constexpr Row kRows[] = {
    {kParameter, kPlain, {"input_ids", "input_ids", "tokens"}},
    {kModule, kVocabulary, {"model.embed_tokens", "embedding.word_embeddings", "tok_embeddings"}},
    {kModule, kVocabulary, {"transformer.wte", "embedding.word_embeddings", ""}},
    {kModule, kMayBeFused | kOtherOutput, {"transformer.wpe", "embedding.position_embeddings", ""}},

    {kModule,
     kMayBeFused,
     {"model.layers.#.input_layernorm", "decoder.layers.#.input_layernorm",
      "layers.#.attention_norm"}},
    {kModule, kMayBeFused, {"transformer.h.#.ln_1", "decoder.layers.#.input_layernorm", ""}},
    {kParameter,
     kPlain,
     {"model.layers.#.input_layernorm.weight",
      "decoder.layers.#.self_attention.linear_qkv.layer_norm_weight",
      "layers.#.attention_norm.weight"}},
    {kParameter,
     kPlain,
     {"transformer.h.#.ln_1.weight", "decoder.layers.#.self_attention.linear_qkv.layer_norm_weight",
      ""}},
    {kParameter,
     kPlain,
     {"transformer.h.#.ln_1.bias", "decoder.layers.#.self_attention.linear_qkv.layer_norm_bias",
      ""}},

    {kModule,
     kPlain,
     {"model.layers.#.self_attn.q_proj, model.layers.#.self_attn.k_proj, "
      "model.layers.#.self_attn.v_proj",
      "decoder.layers.#.self_attention.linear_qkv",
      "layers.#.attention.wq, layers.#.attention.wk, layers.#.attention.wv"},
     "model.layers.#.self_attn.qkv_proj"},
    {kModule, kRotary, {"model.layers.#.self_attn.q_proj", "", "layers.#.attention.wq"}},
    {kModule, kRotary, {"model.layers.#.self_attn.k_proj", "", "layers.#.attention.wk"}},
    {kModule, kPlain, {"model.layers.#.self_attn.v_proj", "", "layers.#.attention.wv"}},
    {kModule,
     kTransposed | kInterleaved,
     {"transformer.h.#.attn.c_attn", "decoder.layers.#.self_attention.linear_qkv", ""}},
    {kModule,
     kPlain,
     {"model.layers.#.self_attn.o_proj", "decoder.layers.#.self_attention.linear_proj",
      "layers.#.attention.wo"}},
    {kModule,
     kTransposed | kMayBeFused | kOtherOutput,
     {"transformer.h.#.attn.c_proj", "decoder.layers.#.self_attention.linear_proj", ""}},
    {kOutput,
     kMayBeFused,
     {"model.layers.#.self_attn", "decoder.layers.#.self_attention", "layers.#.attention"}},
    {kOutput,
     kMayBeFused | kOtherOutput,
     {"transformer.h.#.attn", "decoder.layers.#.self_attention", ""}},

    {kModule,
     kMayBeFused,
     {"model.layers.#.post_attention_layernorm", "decoder.layers.#.pre_mlp_layernorm",
      "layers.#.ffn_norm"}},
    {kModule, kMayBeFused, {"transformer.h.#.ln_2", "decoder.layers.#.pre_mlp_layernorm", ""}},
    {kParameter,
     kPlain,
     {"model.layers.#.post_attention_layernorm.weight",
      "decoder.layers.#.mlp.linear_fc1.layer_norm_weight", "layers.#.ffn_norm.weight"}},
    {kParameter,
     kPlain,
     {"transformer.h.#.ln_2.weight", "decoder.layers.#.mlp.linear_fc1.layer_norm_weight", ""}},
    {kParameter,
     kPlain,
     {"transformer.h.#.ln_2.bias", "decoder.layers.#.mlp.linear_fc1.layer_norm_bias", ""}},

    {kModule,
     kPlain,
     {"model.layers.#.mlp.gate_proj, model.layers.#.mlp.up_proj", "decoder.layers.#.mlp.linear_fc1",
      "layers.#.feed_forward.w1, layers.#.feed_forward.w3"},
     "model.layers.#.mlp.gate_up_proj"},
    {kModule, kPlain, {"model.layers.#.mlp.gate_proj", "", "layers.#.feed_forward.w1"}},
    {kModule, kPlain, {"model.layers.#.mlp.up_proj", "", "layers.#.feed_forward.w3"}},
    {kModule,
     kTransposed | kMayBeFused | kOtherOutput,
     {"transformer.h.#.mlp.c_fc", "decoder.layers.#.mlp.linear_fc1", ""}},
    {kModule,
     kPlain,
     {"model.layers.#.mlp.down_proj", "decoder.layers.#.mlp.linear_fc2",
      "layers.#.feed_forward.w2"}},
    {kModule,
     kTransposed | kMayBeFused | kOtherOutput,
     {"transformer.h.#.mlp.c_proj", "decoder.layers.#.mlp.linear_fc2", ""}},
    {kOutput, kMayBeFused, {"model.layers.#.mlp", "decoder.layers.#.mlp", "layers.#.feed_forward"}},
    {kOutput, kMayBeFused | kOtherOutput, {"transformer.h.#.mlp", "decoder.layers.#.mlp", ""}},
    {kOutput, kMayBeFused, {"model.layers.#", "decoder.layers.#", "layers.#"}},
    {kOutput, kMayBeFused, {"transformer.h.#", "decoder.layers.#", ""}},

    {kOutput, kPlain, {"model.layers.#.mlp", "", ""}, "model.layers.#.block_sparse_moe"},
    {kParameter,
     kPlain,
     {"model.layers.#.mlp.gate.weight", "", ""},
     "model.layers.#.block_sparse_moe.gate.weight"},
    {kParameter,
     kPlain,
     {"model.layers.#.mlp.experts.gate_up_proj", "", ""},
     "model.layers.#.mlp.experts.routed_experts.w13_weight"},
    {kParameter,
     kPlain,
     {"model.layers.#.mlp.experts.down_proj", "", ""},
     "model.layers.#.mlp.experts.routed_experts.w2_weight"},
    {kParameter,
     kPlain,
     {"model.layers.#.mlp.experts.gate_up_proj", "", ""},
     "model.layers.#.block_sparse_moe.experts.routed_experts.w13_weight"},
    {kParameter,
     kPlain,
     {"model.layers.#.mlp.experts.down_proj", "", ""},
     "model.layers.#.block_sparse_moe.experts.routed_experts.w2_weight"},

    {kModule, kPlain, {"model.norm", "decoder.final_layernorm", "norm"}},
    {kModule, kPlain, {"transformer.ln_f", "decoder.final_layernorm", ""}},
    {kOutput, kMayBeFused, {"model", "decoder", ""}},
    {kOutput, kMayBeFused, {"transformer", "decoder", ""}},
    {kModule, kVocabulary, {"lm_head", "output_layer", "output"}},
};

// Names that only one implementation has: containers, functions that are modules there, buffers,
// the batch.
struct Only {
  Implementation of;
  std::string_view pattern;
};
constexpr Only kOnly[] = {
    {kHf, R"([A-Za-z0-9]+(ForCausalLM|LMHeadModel))"},
    {kHf, R"(model|transformer)"},
    {kHf, R"(model\.rotary_emb(\..*)?)"},
    {kHf, R"(model\.layers\.\d+\.(mlp\.act_fn|self_attn\.rotary_emb(\..*)?))"},
    {kHf, R"(transformer\.drop)"},
    {kHf, R"(transformer\.h\.\d+\.(attn\.(attn_dropout|resid_dropout|bias|masked_bias)|)"
          R"(mlp\.(act|dropout)))"},
    {kMegatron, R"(GPTModel|Float16Module|DistributedDataParallel|embedding|decoder)"},
    {kMegatron, R"(embedding\.embedding_dropout|rotary_pos_emb(\..*)?)"},
    {kMegatron, R"(decoder\.layers\.\d+\.self_attention\.(core_attention(\..*)?|[qk]_layernorm))"},
    {kMegatron, R"(decoder\.layers\.\d+\.(cross_attention|pre_cross_attn_layernorm|\w+_bda|)"
                R"(mlp\.activation_func))"},
    {kTorchtitan, R"(Transformer|Llama3Model|freqs_cis|rope(\..*)?)"},
    {kTorchtitan, R"(layers\.\d+\.attention\.(sdpa|inner_attention(\..*)?|[qk]_norm))"},
    {kHf, R"(attention_mask|position_ids|cache_position|labels|token_type_ids)"},
    {kMegatron, R"(attention_mask|position_ids|loss_mask|labels)"},
    {kTorchtitan, R"(positions|attention_masks)"},
};

// A name as a pattern: with the number of the layer as its first group.
std::string PatternOf(std::string_view name) {
  std::string pattern;
  for (const char c : name) {
    if (c == '#') {
      pattern += R"((\d+))";
    } else {
      pattern.append(c == '.' ? "\\." : "").append(c == '.' ? "" : std::string(1, c));
    }
  }
  return pattern;
}

std::string NameOf(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c == '#') {
      text += "\\1";
    } else {
      text += c;
    }
  }
  return text;
}

class MapText {
 public:
  MapText(Implementation a, Implementation b) : a_(a), b_(b) {}

  std::string Make() {
    text_ = "# Built-in map from the names of " + std::string(kWords[a_]) + " to those of " +
            std::string(kWords[b_]) + ". Lines of names that do not occur have no effect.\n";
    for (const Row& row : kRows) Add(row);
    text_ +=
        "# Names that have no counterpart. The first lines leave out names of A, the others names "
        "of B.\n";
    for (const Row& row : kRows) {
      if ((row.flags & kMayBeFused) != 0 && Applies(row))
        LeaveOut(PatternOf(row.names[a_]), PatternOf(row.names[b_]));
    }
    for (const Only& only : kOnly) {
      const bool in_a = only.of == a_, in_b = only.of == b_;
      if (in_a || in_b)
        LeaveOut(in_a ? std::string(only.pattern) : "", in_b ? std::string(only.pattern) : "");
    }
    return std::move(text_) + of_a_ + of_b_;
  }

 private:
  // Parts of one module on both sides have rows of their own.
  bool Applies(const Row& row) const {
    if (row.names[a_] == row.names[b_]) return false;
    const auto several = [&](Implementation of) {
      return row.names[of].find(',') != std::string_view::npos;
    };
    return !row.names[a_].empty() && !row.names[b_].empty() && !(several(a_) && several(b_));
  }
  bool Between(Implementation one) const { return (a_ == one) != (b_ == one); }

  void Add(const Row& row) {
    if (!Applies(row)) return;
    std::vector<std::string> of_outputs, of_parameters;
    if (Between(kTorchtitan) && (row.flags & kRotary) != 0) {
      of_outputs.emplace_back("any order");
      of_parameters.emplace_back("any order");
    } else {
      if (Between(kMegatron))
        of_outputs.emplace_back((row.flags & kInterleaved) != 0 ? "any order" : "sequence first");
      if ((row.flags & kTransposed) != 0) of_parameters.emplace_back("any order");
    }
    if (Between(kMegatron) && (row.flags & kVocabulary) != 0) {
      of_outputs.emplace_back("padded");
      of_parameters.emplace_back("padded");
    }
    const bool other_output = Between(kMegatron) && (row.flags & kOtherOutput) != 0;
    if (row.of != kParameter && !other_output) Line(row, "", "", of_outputs);
    if (row.of == kParameter) Line(row, "", "", of_parameters);
    if (row.of != kModule) return;
    const bool layer = row.names[a_].find('#') != std::string_view::npos;
    Line(row, R"(\.(weight|bias))", layer ? ".\\2" : ".\\1", of_parameters);
  }

  void Line(const Row& row, const std::string& suffix, const std::string& suffix_group,
            const std::vector<std::string>& options) {
    std::string left, right;
    for (const std::string_view part : PartsOf(row.names[a_], ',')) {
      const std::string_view name = Trimmed(part);
      left += left.empty() ? PatternOf(name) + suffix : ", " + NameOf(name) + suffix_group;
    }
    for (const std::string_view part : PartsOf(row.names[b_], ','))
      right += (right.empty() ? "" : ", ") + NameOf(Trimmed(part)) + suffix_group;
    text_ += left + " -> " + right;
    for (std::size_t i = 0; i < options.size(); ++i) text_ += (i == 0 ? " [" : ", ") + options[i];
    text_ += options.empty() ? "\n" : "]\n";
  }

  // Each side once, A before B.
  void LeaveOut(const std::string& a, const std::string& b) {
    const std::string line_a = a + " -> -\n", line_b = "- -> " + b + "\n";
    if (!a.empty() && of_a_.find(line_a) == std::string::npos) of_a_ += line_a;
    if (!b.empty() && of_b_.find("\n" + line_b) == std::string::npos && !of_b_.starts_with(line_b))
      of_b_ += line_b;
  }

  const Implementation a_, b_;
  std::string text_, of_a_, of_b_;
};

}  // namespace

std::vector<std::string> KnownMapNames() {
  std::vector<std::string> names;
  for (const std::string_view a : kWords) {
    for (const std::string_view b : kWords) {
      if (a != b) names.push_back(std::string(a) + ":" + std::string(b));
    }
  }
  return names;
}

bool LooksLikeKnownMap(std::string_view text) {
  const std::size_t colon = text.find(':');
  constexpr std::size_t kWordMax = 64;
  const auto is_word = [](std::string_view word) {
    return !word.empty() && word.size() <= kWordMax &&
           std::all_of(word.begin(), word.end(), [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '_' || c == '-';
           });
  };
  return colon != std::string_view::npos && is_word(text.substr(0, colon)) &&
         is_word(text.substr(colon + 1));
}

Result<std::string> KnownMap(std::string_view name) {
  for (std::uint8_t a = 0; a < kImplementations; ++a) {
    for (std::uint8_t b = 0; b < kImplementations; ++b) {
      if (a != b && name == std::string(kWords[a]) + ":" + std::string(kWords[b]))
        return MapText(static_cast<Implementation>(a), static_cast<Implementation>(b)).Make();
    }
  }
  return Status(Code::kNotFound, "map: found no built-in map '" + Printable(name) +
                                     "'; known are " + Joined(KnownMapNames()) +
                                     "; or give a file of lines PATTERN -> NAME");
}

}  // namespace statcollect
