// A block of statistics as columns of 64-bit numbers: what the stored form is made from and read into.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_BLOCK_COLUMNS_H_
#define STATCOLLECT_SERVER_STORE_CODEC_BLOCK_COLUMNS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/records.h"
#include "server/store/block_digest.h"

namespace statcollect {

inline constexpr std::size_t kBlockRecordsMax = 256;

// Columns of integers come first, then those of real numbers: their bits without the sign, which is in
// kFlags.
enum Column : std::size_t {
  kActivation,
  kLayout,
  kOrder,
  kFlags,
  kNumel,
  kNan,
  kPosInf,
  kNegInf,
  kZero,
  kNeg,
  kPos,
  kMean,  // from here on each follows from those before it, nearly
  kStd,
  kL2,
  kL1,
  kMin,
  kMax,
  kHash,
  kSamples,  // how many
  kColumnCount
};

// Bits of kFlags. Those that change most from record to record are the lowest.
enum Flag : std::uint64_t {
  kNegativeMean = 1,
  kNegativeMin = 2,
  kNegativeMax = 4,
  kHasFinite = 8,
  kWideSketch = 16,   // some sum of the sketch is no float32
  kNegativeStd = 32,  // -0, as of the three below
  kNegativeL1 = 64,
  kNegativeL2 = 128,
};

// One record, by Column.
using ColumnRecord = std::array<std::uint64_t, kColumnCount>;

class BlockColumns {
 public:
  // The records of `columns` at `indexes`, in that order; 1..kBlockRecordsMax of them. `sample_at[i]`: where
  // the samples of record i begin; empty if there are no samples.
  void Take(const StatColumns& columns, std::span<const std::uint32_t> indexes,
            std::span<const std::size_t> sample_at);
  void Resize(std::size_t size, std::uint32_t sketch_width);  // keeps no content
  // Gives the records to `columns`, whose content is replaced; sketches and samples are exchanged, not
  // copied. To be resized before it is used again.
  void MoveTo(std::uint64_t step, StatColumns* columns);

  std::size_t size() const { return size_; }
  std::uint32_t sketch_width() const { return sketch_width_; }
  std::span<std::uint64_t> of(Column column) { return std::span(numbers_).subspan(column * size_, size_); }
  std::span<const std::uint64_t> of(Column column) const {
    return std::span(numbers_).subspan(column * size_, size_);
  }
  ColumnRecord Record(std::size_t index) const;
  std::span<double> sketch_of(std::size_t index) {
    return std::span(sketch).subspan(index * sketch_width_, sketch_width_);
  }
  std::span<const double> sketch_of(std::size_t index) const {
    return std::span(sketch).subspan(index * sketch_width_, sketch_width_);
  }
  BlockDigest Digest() const;
  std::size_t memory_bytes() const;

  std::vector<double> sketch;   // size() * sketch_width(), record by record
  std::vector<double> samples;  // concatenated

 private:
  std::size_t size_ = 0;
  std::uint32_t sketch_width_ = 0;
  std::vector<std::uint64_t> numbers_;  // column by column
};

// The statistics of a record; its layout and order are in the columns of those names.
TensorStats StatsOf(const ColumnRecord& record);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_BLOCK_COLUMNS_H_
