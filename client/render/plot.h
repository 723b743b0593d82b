// A small text plot of values over steps.
#ifndef STATCOLLECT_CLIENT_RENDER_PLOT_H_
#define STATCOLLECT_CLIENT_RENDER_PLOT_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace statcollect::client {

struct PlotLine {
  std::string label;
  std::vector<std::pair<double, double>>
      points;  // (step, value); values that are not finite are skipped
};

// `columns` x `rows` cells with an axis on the left and the steps below. A single line is drawn
// with block characters, two points per cell; several with one mark each (* + o x # @) and a
// legend. Empty if there are fewer than two finite points. kLogarithmic: equal ratios are equal
// distances; values that are not above 0 are skipped.
enum class Axis { kLinear, kLogarithmic };
std::string Plot(const std::vector<PlotLine>& lines, Axis axis = Axis::kLinear,
                 std::size_t columns = 60, std::size_t rows = 12);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RENDER_PLOT_H_
