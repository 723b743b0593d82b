// MindSpore's statistic.csv in all its headers, and the files of one operator that CANN writes raw.
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

// The operator that a raw file is of, from its name "{op_type}.{op_name}.{task}.{stream}.{timestamp}.csv".
struct RawCannFile {
  std::string op_type, op_name;
  std::uint64_t task = 0, stream = 0, timestamp = 0;
};
std::optional<RawCannFile> ParseRawCannName(std::string_view file);

// Cells of a line; quoted ones may hold commas, and quotes doubled. False if a quote stays open or there are
// more than kCellsMax.
inline constexpr std::size_t kCellsMax = 64;
bool SplitCsv(std::string_view line, std::vector<std::string>* cells);

// Calls `take` for every row, in the order of the file. Step, call and parent are the caller's; calls of an
// operator in one step are its to number. `raw`: the operator, where the file's name tells it.
// kInvalidArgument with file and line where it is no such table.
using TakeRow = std::function<Status(Observation)>;
Status ReadMindSporeCsv(LineReader& lines, const RawCannFile* raw, Tally* tally, const TakeRow& take);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_MINDSPORE_CSV_H_
