#include "proto/text/zoom_text.h"

#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "common/names.h"
#include "proto/text/number_text.h"

namespace statcollect {
namespace {

constexpr int kOperatorsShown = 12;  // of a block, for each run
constexpr std::size_t kTextMax = 400;

std::string PlaceText(const v1::ZoomCall& call) {
  std::string text = fmt::format("{}, step {}, rank {}", Printable(call.module(), kTextMax),
                                 call.step(), call.rank());
  if (call.micro_batch() > 0) text += fmt::format(", micro-batch {}", call.micro_batch());
  if (call.call() > 0) text += fmt::format(", call {}", call.call());
  return text + ", " + Printable(call.pass());
}

// Where its inputs come from.
const char* BeforeText(const v1::ZoomCall& call) {
  if (call.pass() == "backward") return "what comes after it, or the loss";
  return call.pass() == "update" ? "what makes its gradient" : "what comes before it";
}

std::string DistanceText(const v1::ZoomCall& call) {
  if (call.shape_differs()) return "in shape or dtype";
  if (!std::isfinite(call.distance())) return "and cannot be measured";
  return "by " + FormatShort(call.distance());
}

std::string ArgumentText(const std::string& argument) {
  // "input=f32[2,3]" as "input f32[2,3]"; numbers keep their sign of equality.
  const std::size_t equals = argument.find('=');
  const bool tensor =
      argument.find('[', equals == std::string::npos ? 0 : equals) != std::string::npos &&
      equals != std::string::npos && equals + 1 < argument.size() && argument[equals + 1] != '[';
  return tensor ? argument.substr(0, equals) + " " + argument.substr(equals + 1) : argument;
}

std::string OperatorText(const v1::ZoomOperator& one) {
  std::string arguments;
  for (const std::string& argument : one.arguments())
    arguments += (arguments.empty() ? "" : ", ") + ArgumentText(argument);
  std::string text = fmt::format("{}({})", one.name(), arguments);
  if (!one.place().empty()) text += "  " + one.place();
  if (!one.function().empty()) text += "  in " + one.function();
  return Printable(text, 2 * kTextMax);
}

void AddOperators(const google::protobuf::RepeatedPtrField<v1::ZoomOperator>& operators,
                  const std::string& run, std::vector<std::string>& lines) {
  for (int i = 0; i < operators.size() && i < kOperatorsShown; ++i)
    lines.push_back(run + ": " + OperatorText(operators[i]));
  if (operators.size() > kOperatorsShown)
    lines.push_back(fmt::format("{}: and {} more", run, operators.size() - kOperatorsShown));
}

void AddDifferences(const v1::ZoomCall& call, const std::string& a, const std::string& b,
                    std::vector<std::string>& lines) {
  for (const v1::ZoomDifference& each : call.differences()) {
    lines.push_back(
        Printable(fmt::format("{}  {} in {}, {} in {}", each.name(), each.a(), a, each.b(), b),
                  2 * kTextMax));
  }
}

// The operator in both runs: one line if it is the same line of code.
void AddOperator(const v1::ZoomCall& call, const std::string& a, const std::string& b,
                 std::vector<std::string>& lines) {
  if (call.a().empty() || call.b().empty()) return;
  const v1::ZoomOperator &of_a = call.a(0), &of_b = call.b(0);
  if (of_a.place() == of_b.place() && of_a.function() == of_b.function()) {
    lines.push_back(OperatorText(of_a));
  } else {
    lines.push_back(a + ": " + OperatorText(of_a));
    lines.push_back(b + ": " + OperatorText(of_b));
  }
  AddDifferences(call, a, b, lines);
  if (call.random_differs()) lines.push_back("the random generator was in another state");
}

std::string OrdinalText(const v1::ZoomCall& call) {
  const std::uint64_t number = call.a().empty() ? 0 : call.a(0).number();
  return fmt::format("operator {} of {}", number + 1, call.operators_a());
}

std::string InputsText(const v1::ZoomCall& call) {
  if (call.inputs() == 0) return "it has no tensors as inputs";
  const std::string inputs =
      call.inputs() == 1 ? "its input" : fmt::format("its {} inputs", call.inputs());
  const char* const verb = call.inputs() == 1 ? "agrees" : "agree";
  if (call.inputs_equal()) return fmt::format("{} {} bit for bit", inputs, verb);
  if (!std::isfinite(call.input_distance()))
    return inputs + (call.inputs() == 1 ? " differs" : " differ");
  return fmt::format("{} {} within {}", inputs, verb, FormatShort(call.input_distance()));
}

std::string BetweenText(const std::string& after, const std::string& before) {
  if (after.empty() && before.empty()) return "in the whole call";
  if (after.empty()) return "before " + before;
  if (before.empty()) return "after " + after;
  return after == before ? "at " + after : "between " + after + " and " + before;
}

void AddBlock(const v1::ZoomCall& call, const std::string& a, const std::string& b,
              std::vector<std::string>& lines) {
  lines.push_back(Printable(a + ", " + BetweenText(call.after_a(), call.before_a()) +
                                (call.a().empty() ? ": nothing that " + b + " has not" : ":"),
                            kTextMax));
  AddOperators(call.a(), "  " + a, lines);
  lines.push_back(Printable(b + ", " + BetweenText(call.after_b(), call.before_b()) +
                                (call.b().empty() ? ": nothing that " + a + " has not" : ":"),
                            kTextMax));
  AddOperators(call.b(), "  " + b, lines);
  AddDifferences(call, a, b, lines);
}

}  // namespace

std::vector<std::string> ZoomText(const v1::ZoomCall& call, const std::string& a,
                                  const std::string& b) {
  std::vector<std::string> lines;
  const std::string place = PlaceText(call) + ": ";
  switch (call.outcome()) {
    case v1::ZOOM_OUTCOME_IDENTICAL:
      lines.push_back(place + fmt::format("the results of {} operators are equal bit for bit",
                                          call.operators_a()));
      break;
    case v1::ZOOM_OUTCOME_ROUNDING:
      lines.push_back(
          place +
          fmt::format("nothing but rounding; it begins {}, whose result differs {}",
                      call.a().empty() || call.b().empty() || call.a_size() + call.b_size() > 2
                          ? "in operators that only one run has"
                          : "at " + OrdinalText(call),
                      DistanceText(call)));
      call.a_size() == 1 && call.b_size() == 1 ? AddOperator(call, a, b, lines)
                                               : AddBlock(call, a, b, lines);
      break;
    case v1::ZOOM_OUTCOME_INPUTS:
      lines.push_back(
          place +
          fmt::format("its inputs differ already{}, and no operator makes that much larger; "
                      "zoom into {}",
                      std::isfinite(call.input_distance())
                          ? fmt::format(" (by {})", FormatShort(call.input_distance()))
                          : "",
                      BeforeText(call)));
      AddOperator(call, a, b, lines);
      break;
    case v1::ZOOM_OUTCOME_OPERATOR:
      lines.push_back(place + fmt::format("{} differs {}, {}", OrdinalText(call),
                                          DistanceText(call), InputsText(call)));
      AddOperator(call, a, b, lines);
      break;
    case v1::ZOOM_OUTCOME_BLOCK:
      lines.push_back(
          place +
          fmt::format("{} and {} compute different operators; what these hand on differs {}", a, b,
                      DistanceText(call)));
      AddBlock(call, a, b, lines);
      break;
    default:
      lines.push_back(place + "compared");
  }
  if (call.left_out_a() + call.left_out_b() > 0) {
    lines.push_back(
        fmt::format("beyond the limit of operators, {} in {} and {} in {} were not recorded",
                    FormatCount(call.left_out_a()), a, FormatCount(call.left_out_b()), b));
  }
  return lines;
}

}  // namespace statcollect
