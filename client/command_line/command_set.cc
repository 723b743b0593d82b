#include "client/command_line/command_set.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "client/commands/selection.h"
#include "common/choice.h"
#include "common/parse.h"

namespace statcollect::client {
namespace {

CLI::Validator Whole(std::uint64_t high) {
  const auto check = [high](const std::string& text) {
    return ParseNumberIn<std::uint64_t>(text, 0, high).status().message();  // empty: it is one
  };
  return CLI::Validator(check, "NUMBER");
}

}  // namespace

CLI::Validator Between(double low, double high) {
  const auto check = [low, high](const std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high)
      return std::string();
    return fmt::format("expected a number from {:g} to {:g}, found '{}'", low, high, text);
  };
  return CLI::Validator(check, "NUMBER");
}

CLI::Validator StepNumber() { return Whole(std::numeric_limits<std::int64_t>::max()); }
CLI::Validator Index() { return Whole(std::numeric_limits<std::uint32_t>::max()); }

void TakesOneOf(CLI::Option* option, const std::string& word, std::vector<std::string> values) {
  const auto check = [values = std::move(values)](const std::string& text) {
    return std::find(values.begin(), values.end(), text) != values.end() ? ""
                                                                         : NotOneOf(text, values);
  };
  option->type_name(word)->check(CLI::Validator(check, ""));
}

void AddRunName(CLI::App* app, std::string& run) {
  app->add_option("run", run, "Name of the run")->required();
}

CLI::Option* AddRankFilter(CLI::App* app, std::string& ranks) {
  return app->add_option("--rank,--ranks", ranks, "Only these ranks, such as 0,2-3");
}

CLI::Option* AddStepFilter(CLI::App* app, std::string& steps) {
  return app->add_option("--step,--steps", steps,
                         "Only these steps, such as 0-9,20,100- or every=10");
}

void AddKindFilter(CLI::App* app, std::string& kinds, const std::string& such) {
  TakesParsed(app->add_option("--kind,--kinds", kinds, "Only these kinds, such as " + such),
              "KINDS", ParseKinds);
}

}  // namespace statcollect::client
