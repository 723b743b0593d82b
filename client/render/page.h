// A text answer: headings, sentences and tables in order, printed as aligned text or as Markdown.
// Pass untrusted text through Printable() first, except the cells of tables (table.h).
#ifndef STATCOLLECT_CLIENT_RENDER_PAGE_H_
#define STATCOLLECT_CLIENT_RENDER_PAGE_H_

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "client/render/table.h"
#include "client/render/terminal.h"

namespace statcollect::client {

enum class Tone { kPlain, kGood, kBad, kWarn };

class Page {
 public:
  void AddHeading(std::string text);
  // `lead` comes first, in the tone's colour, followed by a blank: "DIVERGED" "at step 3".
  void AddSentence(std::string text, std::string lead = {}, Tone tone = Tone::kPlain);
  void AddItems(std::vector<std::string> items);  // one line each
  void AddTable(Table table);
  void AddPlot(std::string lines);  // printed unchanged

  std::string ToText(const Terminal& terminal) const;
  std::string ToMarkdown() const;

 private:
  struct Heading {
    std::string text;
  };
  struct Sentence {
    std::string text, lead;
    Tone tone;
  };
  struct Items {
    std::vector<std::string> items;
  };
  struct Plot {
    std::string lines;
  };
  using Part = std::variant<Heading, Sentence, Items, Table, Plot>;

  static std::string Text(const Heading& part, const Terminal& terminal);
  static std::string Text(const Sentence& part, const Terminal& terminal);
  static std::string Text(const Items& part, const Terminal& terminal);
  static std::string Text(const Table& part, const Terminal& terminal);
  static std::string Text(const Plot& part, const Terminal& terminal);

  std::vector<Part> parts_;
};

// Breaks at blanks so that no line is longer than `width` columns (0: no limit), except for longer
// words. Later lines are indented by `indent` blanks. The text has no final end of line.
std::string Wrap(std::string_view text, std::size_t width, std::size_t indent = 0);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RENDER_PAGE_H_
