// Numbers and words in the text formats. Doubles use the shortest form that reads back as the same
// value.
#ifndef STATCOLLECT_CLIENT_EXPORTS_TEXT_H_
#define STATCOLLECT_CLIENT_EXPORTS_TEXT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace statcollect::client {

void AppendUnsigned(std::uint64_t value, std::string& to);
void AppendSigned(std::int64_t value, std::string& to);
// "0.1", "1e+22", "NaN", "Infinity", "-Infinity".
void AppendDouble(double value, std::string& to);
// As JSON: values that are not finite are in quotes.
void AppendJsonDouble(double value, std::string& to);
// "0x" and 16 digits.
void AppendHash(std::uint64_t hash, std::string& to);
// A JSON string, ASCII only. `text` is valid UTF-8.
void AppendJsonString(std::string_view text, std::string& to);
// "[4,16]".
void AppendList(std::span<const std::int64_t> values, std::string& to);
// "[0.5,\"NaN\"]".
void AppendList(std::span<const double> values, std::string& to);
// As Python prints a float: "1.0", "1e-05", "nan", "-inf".
std::string PythonFloat(double value);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_TEXT_H_
