// Conversions shared by the importers.
#ifndef STATCOLLECT_CLIENT_FORMATS_CONVERT_H_
#define STATCOLLECT_CLIENT_FORMATS_CONVERT_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/records.h"

namespace statcollect::client::formats {

// Parses "torch.float32", "float32", "Float32", "DT_FLOAT" and the like; kUnspecified for
// unsupported dtypes.
DType ParseTorchDType(std::string_view text);
DType ParseMindSporeDType(std::string_view text);

// Numbers between separators, with blanks around them; the list may end with a separator. Empty if
// a number is not in 0..2^63-1 or there are more than kDimsMax.
std::optional<std::vector<std::int64_t>> ParseShapeList(std::string_view text, char separator);
// Product of the shape; empty from 2^62 on.
std::optional<std::uint64_t> Elements(const std::vector<std::int64_t>& shape);

// Stores the value if it is finite, otherwise marks it as absent.
void SetFinite(double value, Statistic statistic, double* to, Layout* layout);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_CONVERT_H_
