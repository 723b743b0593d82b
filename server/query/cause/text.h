// Texts for the sentences of causes.
#ifndef STATCOLLECT_SERVER_QUERY_CAUSE_TEXT_H_
#define STATCOLLECT_SERVER_QUERY_CAUSE_TEXT_H_

#include <string>
#include <string_view>
#include <utility>

#include "server/query/cause/evidence.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query::cause {

inline Cause Make(std::string rule, std::string text, Confidence confidence, std::string key = {},
                  std::string a = {}, std::string b = {}) {
  return {.rule = std::move(rule),
          .text = std::move(text),
          .confidence = confidence,
          .key = std::move(key),
          .a = std::move(a),
          .b = std::move(b)};
}

// "0.025", "1e-05": six significant digits at most.
std::string NumberText(double value);
// "2 times", "1.003 times"; close to 1, as a difference from 1: "(1 + 3e-07) times".
std::string FactorText(double factor);
// "0.5" for 0.49999951: four significant digits.
std::string WithFewDigits(double value);
// Both numbers, with as many digits as it takes to distinguish them.
std::pair<std::string, std::string> NumberTexts(double a, double b);

// As NumberTexts for long decimal fractions; other values are returned unchanged.
std::pair<std::string, std::string> ValueTexts(const std::string& a, const std::string& b);

// "0.025 in base and 0.05 in ort"
std::string InBoth(const Evidence& evidence, std::string_view a, std::string_view b);

// "blocks.1.ln2[0]", printable.
std::string PlaceText(const TensorKey& key);
// "output blocks.1.ln2[0]"
std::string TensorText(const Divergence& root);

}  // namespace statcollect::query::cause

#endif  // STATCOLLECT_SERVER_QUERY_CAUSE_TEXT_H_
