// A small plot of values over steps, in characters.
#ifndef STATCOLLECT_CLIENT_PLOT_H_
#define STATCOLLECT_CLIENT_PLOT_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace statcollect::client {

struct PlotLine {
  std::string label;
  std::vector<std::pair<double, double>> points;  // (step, value), not finite ones are left out
};

// `columns` x `rows` cells of points (* + o x # @ in the order of the lines) with an axis on the left and the
// steps below; a legend if there is more than one line. Empty if there are fewer than two finite points.
std::string Plot(const std::vector<PlotLine>& lines, std::size_t columns = 60, std::size_t rows = 12);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_PLOT_H_
