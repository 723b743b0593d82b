// Reads MindSpore's statistic.csv with any of its headers, and the raw files per operator that CANN
// writes.
#ifndef STATCOLLECT_CLIENT_FORMATS_MINDSPORE_CSV_H_
#define STATCOLLECT_CLIENT_FORMATS_MINDSPORE_CSV_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/formats/observation.h"
#include "client/formats/source.h"

namespace statcollect::client::formats {

// The operator of a raw file, from its name "{op_type}.{op_name}.{task}.{stream}.{timestamp}.csv".
struct RawCannFile {
  std::string op_type, op_name;
  std::uint64_t task = 0, stream = 0, timestamp = 0;
};
std::optional<RawCannFile> ParseRawCannName(std::string_view file);

// Splits a line into cells; quoted cells may contain commas and doubled quotes. False if a quote is
// not closed or there are more than kCellsMax.
inline constexpr std::size_t kCellsMax = 64;
bool SplitCsv(std::string_view line, std::vector<std::string>* cells);

// Calls `take` for every row, in the order of the file. The caller sets step, call and parent, and
// numbers the calls of an operator in a step. `raw`: the operator, if the file's name has it.
// kInvalidArgument, with file and line: not such a table.
using TakeRow = std::function<Status(Observation)>;
Status ReadMindSporeCsv(LineReader& lines, const RawCannFile* raw, Tally* tally,
                        const TakeRow& take);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_MINDSPORE_CSV_H_
