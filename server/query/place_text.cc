#include "server/query/place_text.h"

#include <algorithm>

#include "common/placement.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kShown = 4;

std::string Span(std::int64_t begin, std::int64_t end) {
  return std::to_string(begin) + ":" + std::to_string(end);
}

std::string BoxesText(const Placement& place) {
  const std::size_t dims = place.global_shape.size(),
                    count = dims == 0 ? 0 : place.boxes.size() / (2 * dims);
  std::string text;
  for (std::size_t i = 0; i < std::min(count, kShown); ++i) {
    text += text.empty() ? "[" : " and [";
    for (std::size_t d = 0; d < dims; ++d) {
      const std::int64_t offset = place.boxes[2 * dims * i + d],
                         size = place.boxes[2 * dims * i + dims + d];
      text += (d > 0 ? ", " : "") + Span(offset, offset + size);
    }
    text += "]";
  }
  return count > kShown ? text + " and others" : text;
}

std::string RangesText(const Placement& place) {
  std::string text = "elements ";
  const std::size_t count = place.ranges.size() / 2;
  for (std::size_t i = 0; i < std::min(count, kShown); ++i)
    text += (i > 0 ? " and " : "") + Span(place.ranges[2 * i], place.ranges[2 * i + 1]);
  return count > kShown ? text + " and others" : text;
}

}  // namespace

std::string PlaceText(const Placement& place) {
  std::string text;
  PlacementView of_rows = View(place);
  of_rows.unordered = 0;  // which rows a rank has means nothing
  if (!IsWhole(of_rows)) {
    text = (place.ranges.empty() ? BoxesText(place) : RangesText(place)) + " of (";
    for (std::size_t d = 0; d < place.global_shape.size(); ++d)
      text += (d > 0 ? ", " : "") + std::to_string(place.global_shape[d]);
    text += ")";
  }
  if (place.partial) text += (text.empty() ? "" : ", ") + std::string("a term of a sum");
  return text;
}

}  // namespace statcollect::query
