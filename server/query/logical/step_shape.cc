#include "server/query/logical/step_shape.h"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace statcollect::query {
namespace {

BlockDigest ToDigest(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  BlockDigest digest;
  static_assert(sizeof digest == sizeof canonical.digest);
  std::memcpy(digest.data(), canonical.digest, sizeof digest);
  return digest;
}

template <typename T>
void Append(const std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void StepHashes::Add(std::uint32_t member, const HashColumns& block) {
  records.blocks.push_back({.member = member,
                            .records = static_cast<std::uint32_t>(block.hash.size()),
                            .sketch_width = block.sketch_width});
  Append(block.activation, records.activation);
  Append(block.layout, records.layout);
  Append(block.order, records.order);
  Append(block.hash, hash);
}

void StepHashes::Clear() {
  records.blocks.clear();
  records.activation.clear();
  records.layout.clear();
  records.order.clear();
  hash.clear();
}

BlockHead HeadWithoutValues(std::uint64_t step, const StatColumns& block) {
  BlockHead head{
      .step = step, .activation = 0, .records = block.size(), .digest = {}, .activations = 0};
  if (block.empty()) return head;
  head.activation = *std::min_element(block.activation.begin(), block.activation.end());
  head.activations =
      XXH3_64bits(block.activation.data(), block.activation.size() * sizeof(std::uint32_t));
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const std::uint64_t size[] = {block.size(), block.sketch_width};
  XXH3_128bits_update(&state, size, sizeof size);
  for (const auto* column : {&block.activation, &block.layout, &block.order})
    XXH3_128bits_update(&state, column->data(), column->size() * sizeof(std::uint32_t));
  head.digest = ToDigest(XXH3_128bits_digest(&state));
  return head;
}

BlockDigest DigestWith(const BlockHead& head, std::span<const std::uint64_t> hashes) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, head.digest.data(), head.digest.size());
  XXH3_128bits_update(&state, hashes.data(), hashes.size_bytes());
  return ToDigest(XXH3_128bits_digest(&state));
}

std::optional<MergedHeads> StepShape::Merge(std::uint64_t number, const StepHashes& step) const {
  for (const auto& [one, other] : replicas_) {
    if (step.hash[one] != step.hash[other]) return std::nullopt;
  }
  std::size_t merged = 0;
  for (const BlockHead& head : heads_) merged += head.records;
  std::vector<std::uint64_t> hashes(merged);
  for (std::size_t i = 0; i < to_.size(); ++i) {
    if (to_[i] != kNotMerged) hashes[to_[i]] += step.hash[i];
  }
  MergedHeads heads = heads_;
  std::span<const std::uint64_t> left = hashes;
  for (BlockHead& head : heads) {
    head.step = number;
    head.digest = DigestWith(head, left.first(head.records));
    left = left.subspan(head.records);
  }
  return heads;
}

}  // namespace statcollect::query
