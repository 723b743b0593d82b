// Numbers as people read them, in tables and sentences.
#ifndef STATCOLLECT_PROTO_TEXT_NUMBER_TEXT_H_
#define STATCOLLECT_PROTO_TEXT_NUMBER_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>

namespace statcollect {

std::string FormatNumber(double value);                        // "%.6g"; "nan", "inf", "-inf"
std::string FormatNumber(const std::optional<double>& value);  // "-" if absent
std::string FormatShort(double value);  // two digits: "1.1e-2", "1e-4", "0.25"; for distances
// The change from a to b, relative to a: "+33 %", "-0.12 %"; below a thousandth "+2.2e-4", from
// eleven-fold on "12 times". Empty if they are equal, a is 0, or one is not finite.
std::string FormatChange(double a, double b);
std::string FormatCount(std::uint64_t value);  // "1,234,567"

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_TEXT_NUMBER_TEXT_H_
