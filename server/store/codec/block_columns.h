// A block of statistics as columns of 64-bit numbers, between records and the stored form.
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
#include "server/store/hash_columns.h"
#include "server/store/number_columns.h"
#include "server/store/run_reader.h"

namespace statcollect {

inline constexpr std::size_t kBlockRecordsMax = 256;

// Integer columns come first, then real numbers: their bits without the sign, which is in kFlags.
enum Column : std::size_t {
  kActivation,
  kLayout,
  kOrder,
  kFlags,  // of Flag
  kNumel,
  kNan,
  kPosInf,
  kNegInf,
  kZero,
  kNeg,
  kPos,
  kMean,  // from here on, each column is nearly predicted by earlier ones
  kStd,
  kL2,
  kL1,
  kMin,
  kMax,
  kHash,
  kSamples,  // number of samples
  kColumnCount
};

// One record, indexed by Column.
using ColumnRecord = std::array<std::uint64_t, kColumnCount>;

// The columns that tell whose hashes they are.
inline constexpr std::array kHashColumns = {kActivation, kLayout, kOrder, kHash};

class BlockColumns {
 public:
  // Copies the records of `columns` at `indexes`, in that order; 1..kBlockRecordsMax of them.
  // `sample_at[i]`: where the samples of record i begin; empty if there are no samples.
  void Take(const StatColumns& columns, std::span<const std::uint32_t> indexes,
            std::span<const std::size_t> sample_at);
  void Resize(std::size_t size, std::uint32_t sketch_width);  // does not keep the content
  // Moves the records to `columns`, replacing their content; sketches and samples, if they are
  // wanted, are swapped, not copied. Resize before using the block again.
  void MoveTo(std::uint64_t step, bool sketches, StatColumns* columns);
  // Needs kHashColumns only.
  void CopyHashesTo(HashColumns* columns) const;
  // Of what was read; valid until the block changes.
  NumberColumns View() const;

  std::size_t size() const { return size_; }
  std::uint32_t sketch_width() const { return sketch_width_; }
  std::span<std::uint64_t> of(Column column) {
    filled_[column] = false;
    return std::span(numbers_).subspan(column * size_, size_);
  }
  std::span<const std::uint64_t> of(Column column) const {
    return std::span(numbers_).subspan(column * size_, size_);
  }
  // Sets one number for all records; free if the column has had it since the last block of this
  // size.
  void Fill(Column column, std::uint64_t number);
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
  std::vector<std::uint64_t> numbers_;       // column by column
  std::array<bool, kColumnCount> filled_{};  // the column's numbers are equal
};

StatPoint PointOf(std::uint64_t step, const ColumnRecord& record);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_BLOCK_COLUMNS_H_
