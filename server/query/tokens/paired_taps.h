// Taps of two runs that belong together, and how much of a row's distance rounding explains.
#ifndef STATCOLLECT_SERVER_QUERY_TOKENS_PAIRED_TAPS_H_
#define STATCOLLECT_SERVER_QUERY_TOKENS_PAIRED_TAPS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "server/query/compare/name_map.h"
#include "server/query/tokens/token_table.h"
#include "server/store/record_reader.h"

namespace statcollect::query {

struct TapPair {
  const TokenTap *a = nullptr, *b = nullptr;
};
struct PairedTaps {
  std::vector<TapPair> pairs;               // in A's order
  std::vector<std::string> only_a, only_b;  // names
};
// B's tap has the same name as A's, or the map's. Borrows from the tables.
PairedTaps PairTaps(const NameMap& names, const TokenTable& a, const TokenTable& b);

// The largest distance between the rows of a run and of its repeats, by tap. Borrows the run.
class TapNoise {
 public:
  // `repeats`: runs; empty: the twins of the run. Cost: reads the token records of each.
  static Result<TapNoise> Measure(RecordReader& store, const TokenTable& run,
                                  std::vector<std::string> repeats, const std::string& steps);

  // Nothing: no repeat has the tap.
  std::optional<double> At(const TokenTap& tap) const;
  const std::vector<std::string>& used() const { return used_; }
  const std::vector<std::string>& useless() const { return useless_; }  // named, without a token

 private:
  std::map<const TokenTap*, double> largest_;
  std::vector<std::string> used_, useless_;
};

// What the arithmetic of one module explains. `columns`: terms of its sums.
double FloorOfRounding(DType a, DType b, std::uint32_t columns);
// What rounding explains at a tap. `measured`: by repeats; otherwise it is guessed from `before`,
// the largest distance at the taps before.
double LimitOfRounding(const TapPair& taps, std::optional<double> measured, double before);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_TOKENS_PAIRED_TAPS_H_
