// Built-in maps between the names that implementations give the same model: Hugging Face
// Transformers, Megatron-Core, torchtitan and vLLM, of Llama-like and GPT-2-like models.
// docs/maps.md describes the language.
#ifndef STATCOLLECT_COMMON_KNOWN_MAPS_H_
#define STATCOLLECT_COMMON_KNOWN_MAPS_H_

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace statcollect {

// All of them: "hf:megatron", "hf:torchtitan", ... From the names of the first to those of the
// second.
std::vector<std::string> KnownMapNames();

// Whether the text is of the form "word:word", which no line of a map is.
bool LooksLikeKnownMap(std::string_view text);

// The rules of a map, as lines with comments. kNotFound lists the known ones.
Result<std::string> KnownMap(std::string_view name);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_KNOWN_MAPS_H_
