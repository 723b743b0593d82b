// Sentences of causes.
#ifndef STATCOLLECT_SERVER_QUERY_CAUSE_TEXT_H_
#define STATCOLLECT_SERVER_QUERY_CAUSE_TEXT_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/query/cause/evidence.h"

namespace statcollect::query::cause {

// "0.025", "1e-05": six significant digits at most.
std::string NumberText(double value);
// "0.5" for 0.49999951: four significant digits.
std::string WithFewDigits(double value);
// Both, with as many digits as it takes to tell them apart.
std::pair<std::string, std::string> NumberTexts(double a, double b);

// Long fractions shortened likewise; everything else as it is.
std::pair<std::string, std::string> ValueTexts(const std::string& a, const std::string& b);

// "0.025 in base and 0.05 in ort"
std::string InBoth(const Evidence& evidence, std::string_view a, std::string_view b);

// "output blocks.1.ln2[0]"
std::string TensorText(const Divergence& root);

// Parts between dots.
std::vector<std::string_view> Components(std::string_view name);
// "blocks.1" of "blocks.1.ln2"; empty for a name without a dot.
std::string_view ParentOf(std::string_view name);

bool IsNumber(std::string_view text);                      // digits only
std::optional<double> ParseDouble(std::string_view text);  // the whole text

}  // namespace statcollect::query::cause

#endif  // STATCOLLECT_SERVER_QUERY_CAUSE_TEXT_H_
