// What a file of SGLang's tensor dumper is called, and which tensor that is.
#ifndef STATCOLLECT_CLIENT_FORMATS_SGLANG_NAME_H_
#define STATCOLLECT_CLIENT_FORMATS_SGLANG_NAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/records.h"

namespace statcollect::client::formats {

// "step=0___rank=1___dump_index=7___name=attn_out___layer_id=3.pt".
struct SglangName {
  std::uint64_t step = 0, index = 0;
  std::uint64_t rank = 0;
  std::string name;
  std::vector<std::pair<std::string, std::string>> tags;  // the others that tell tensors apart
};
// `path` may begin with folders, and have more of them in it: a name may contain slashes. Empty:
// not such a file.
std::optional<SglangName> ParseSglangName(std::string_view path);

// Name, kind and position in a container (docs/import-export.md); `name` may be another than that
// of the file.
TensorDef SglangTensor(const std::string& name,
                       const std::vector<std::pair<std::string, std::string>>& tags);

// Of SGLang's other writer, with all tensors of a forward pass in one file:
// "TP0_PP0_Rank1_pid7/Pass00003.pt".
struct SglangPass {
  std::uint64_t pass = 0;
  std::optional<std::uint64_t> rank;  // empty: the file is in no such folder
};
std::optional<SglangPass> ParseSglangPass(std::string_view path);
TensorDef SglangPassTensor(const std::string& name);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_SGLANG_NAME_H_
