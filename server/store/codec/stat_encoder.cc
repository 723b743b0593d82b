#include "server/store/codec/stat_encoder.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace statcollect {
namespace {

// Most blocks that refer to one key frame. Damage to one value affects at most this many other
// blocks.
constexpr int kKeyFrameUsesMax = 15;
constexpr int kKeyFrameMissesMax = 3;
// Below, an alias and its entry in the list of contents take about as much as the block.
constexpr std::size_t kListedBytesMin = 256;

}  // namespace

StatEncoder::StatEncoder(std::uint32_t attempt, std::uint32_t rank, Options options)
    : attempt_(attempt), rank_(rank), options_(std::move(options)) {}

StatEncoder::~StatEncoder() {
  if (kept_bytes_ > 0) options_.key_frame_bytes->fetch_sub(kept_bytes_, std::memory_order_relaxed);
}

void StatEncoder::Encode(const StatColumns& columns, std::vector<EncodedStatBlock>* blocks) {
  std::vector<std::size_t> sample_at;
  if (!columns.samples.empty()) {
    sample_at.resize(columns.size());
    std::exclusive_scan(columns.sample_count.begin(), columns.sample_count.end(), sample_at.begin(),
                        std::size_t{0});
  }
  const auto size = static_cast<std::uint32_t>(columns.size());
  for (std::uint32_t first = 0; first < size;) {
    std::uint32_t end = first + 1;
    while (end < size && columns.step[end] == columns.step[first]) ++end;
    EncodeStep(columns, first, end, sample_at, blocks);
    first = end;
  }
}

void StatEncoder::EncodeStep(const StatColumns& columns, std::uint32_t first, std::uint32_t end,
                             std::span<const std::size_t> sample_at,
                             std::vector<EncodedStatBlock>* blocks) {
  std::vector<std::uint32_t> indexes(end - first);
  std::iota(indexes.begin(), indexes.end(), first);
  const auto group_of = [&](std::uint32_t index) {
    return columns.activation[index] >> kActivationsShift;
  };
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return group_of(a) < group_of(b); };
  if (!std::is_sorted(indexes.begin(), indexes.end(), before)) {
    std::stable_sort(indexes.begin(), indexes.end(), before);
  }
  for (std::size_t at = 0; at < indexes.size();) {
    std::size_t stop = at + 1;
    while (stop < indexes.size() && stop - at < kBlockRecordsMax &&
           group_of(indexes[stop]) == group_of(indexes[at]))
      ++stop;
    BlockColumns block;
    block.Take(columns, std::span(indexes).subspan(at, stop - at), sample_at);
    blocks->push_back(EncodeOne(std::move(block), columns.step[first]));
    at = stop;
  }
}

EncodedStatBlock StatEncoder::EncodeOne(BlockColumns block, std::uint64_t step) {
  const auto activations = block.of(kActivation);
  const auto lowest =
      static_cast<std::uint32_t>(*std::min_element(activations.begin(), activations.end()));
  EncodedStatBlock encoded{
      .key = {.attempt = attempt_, .rank = rank_, .step = step, .activation = lowest},
      .digest = block.Digest(),
      .records = block.size()};
  const auto found = key_frames_.find(lowest);
  const bool fits = found != key_frames_.end() && found->second.step < step &&
                    IsKeyFrameFor(found->second.block, block);
  const bool relative = fits && found->second.uses < kKeyFrameUsesMax;
  // A step that arrives in parts, as seldom happens, has blocks of other sizes: they do not drive
  // out the frame that fits the usual ones.
  const bool unusual =
      found != key_frames_.end() && !fits && ++found->second.misses < kKeyFrameMissesMax;
  if (relative) {
    ++found->second.uses;
    found->second.misses = 0;
    encoded.own =
        EncodeBlock(block, encoded.digest, found->second.block, step - found->second.step);
  } else {
    encoded.own = EncodeBlock(block, encoded.digest);
  }
  const std::size_t size = block.size();
  const std::uint32_t width = block.sketch_width();
  encoded.worth_listing = encoded.own.stats.size() + encoded.own.sums.size() >= kListedBytesMin;
  if (encoded.worth_listing && options_.find_twin) {
    encoded.twin = options_.find_twin(encoded.digest);
    if (encoded.twin) encoded.alias = EncodeAlias(encoded.digest, size, width, *encoded.twin);
  }
  // A block that is to be an alias holds nothing itself, so nothing may lean on it.
  if (!relative && !unusual && !encoded.twin) Keep(lowest, step, std::move(block));
  return encoded;
}

void StatEncoder::Keep(std::uint32_t activation, std::uint64_t step, BlockColumns block) {
  if (options_.key_frame_bytes == nullptr) return;
  std::atomic<std::size_t>& total = *options_.key_frame_bytes;
  if (const auto old = key_frames_.find(activation); old != key_frames_.end()) {
    const std::size_t bytes = old->second.block.memory_bytes();
    total.fetch_sub(bytes, std::memory_order_relaxed);
    kept_bytes_ -= bytes;
    key_frames_.erase(old);
  }
  const std::size_t bytes = block.memory_bytes();
  if (total.fetch_add(bytes, std::memory_order_relaxed) + bytes > options_.key_frame_bytes_max) {
    total.fetch_sub(bytes, std::memory_order_relaxed);
    return;
  }
  kept_bytes_ += bytes;
  key_frames_.insert_or_assign(activation,
                               KeyFrame{.step = step, .uses = 0, .block = std::move(block)});
}

}  // namespace statcollect
