#include "client/render/page.h"

#include <algorithm>
#include <utility>

namespace statcollect::client {
namespace {

constexpr std::size_t kLineMax =
    100;  // sentences are not made wider than that, however wide the terminal
constexpr std::size_t kIndent = 2;
constexpr std::string_view kToneOff = "\x1b[0m";

std::string_view Colour(Tone tone) {
  switch (tone) {
    case Tone::kGood:
      return "\x1b[1;32m";
    case Tone::kBad:
      return "\x1b[1;31m";
    case Tone::kWarn:
      return "\x1b[1;33m";
    case Tone::kPlain:
      break;
  }
  return "\x1b[1m";
}

std::size_t LineWidth(const Terminal& terminal) {
  return terminal.out ? std::min(terminal.width, kLineMax) : 0;
}

std::string Painted(std::string_view text, Tone tone, const Terminal& terminal) {
  if (!terminal.colour || text.empty()) return std::string(text);
  return std::string(Colour(tone)).append(text).append(kToneOff);
}

}  // namespace

void Page::AddHeading(std::string text) { parts_.emplace_back(Heading{std::move(text)}); }
void Page::AddSentence(std::string text, std::string lead, Tone tone) {
  parts_.emplace_back(Sentence{std::move(text), std::move(lead), tone});
}
void Page::AddItems(std::vector<std::string> items) {
  parts_.emplace_back(Items{std::move(items)});
}
void Page::AddTable(Table table) { parts_.emplace_back(std::move(table)); }
void Page::AddPlot(std::string lines) { parts_.emplace_back(Plot{std::move(lines)}); }

std::string Page::Text(const Heading& part, const Terminal& terminal) {
  return Painted(part.text, Tone::kPlain, terminal) + "\n";
}

std::string Page::Text(const Sentence& part, const Terminal& terminal) {
  const std::string text =
      Wrap(part.lead.empty() ? part.text : part.lead + " " + part.text, LineWidth(terminal));
  if (!text.starts_with(part.lead)) return text + "\n";  // the lead itself was broken
  return Painted(part.lead, part.tone, terminal) + text.substr(part.lead.size()) + "\n";
}

std::string Page::Text(const Items& part, const Terminal& terminal) {
  std::string text;
  const std::size_t width = LineWidth(terminal);
  for (const std::string& item : part.items) {
    text.append(kIndent, ' ')
        .append(Wrap(item, width > kIndent ? width - kIndent : 0, kIndent + 2))
        .append("\n");
  }
  return text;
}

std::string Page::Text(const Table& part, const Terminal& terminal) {
  return part.ToText({.width = terminal.width, .colour = terminal.colour, .indent = kIndent});
}

std::string Page::Text(const Plot& part, const Terminal&) { return part.lines; }

std::string Page::ToText(const Terminal& terminal) const {
  std::string text;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const bool after_heading = i > 0 && std::holds_alternative<Heading>(parts_[i - 1]);
    if (i > 0 && !after_heading) text += "\n";
    text += std::visit([&](const auto& part) { return Text(part, terminal); }, parts_[i]);
  }
  return text;
}

std::string Page::ToMarkdown() const {
  std::string text;
  for (const Part& part : parts_) {
    if (!text.empty()) text += "\n";
    if (const auto* heading = std::get_if<Heading>(&part)) text += "### " + heading->text + "\n";
    if (const auto* table = std::get_if<Table>(&part)) text += table->ToMarkdown();
    if (const auto* plot = std::get_if<Plot>(&part)) text += "```\n" + plot->lines + "```\n";
    if (const auto* sentence = std::get_if<Sentence>(&part)) {
      text += sentence->lead.empty() ? "" : "**" + sentence->lead + "** ";
      text += sentence->text + "\n";
    }
    if (const auto* items = std::get_if<Items>(&part)) {
      for (const std::string& item : items->items) text += "- " + item + "\n";
    }
  }
  return text;
}

std::string Wrap(std::string_view text, std::size_t width, std::size_t indent) {
  if (width == 0) return std::string(text);
  std::string wrapped;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t blank = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, blank);
    text.remove_prefix(std::min(blank + 1, text.size()));
    const std::size_t columns = DisplayWidth(word);
    if (!wrapped.empty() && column + 1 + columns > width) {
      wrapped += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!wrapped.empty()) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += columns;
  }
  return wrapped;
}

}  // namespace statcollect::client
