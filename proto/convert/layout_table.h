// Finds the layout of a record: in what the session has defined so far, or in the batch itself.
#ifndef STATCOLLECT_PROTO_CONVERT_LAYOUT_TABLE_H_
#define STATCOLLECT_PROTO_CONVERT_LAYOUT_TABLE_H_

#include <cstdint>
#include <vector>

#include "common/records.h"
#include "common/shape.h"
#include "proto/convert.h"

namespace statcollect::convert {

// Number of elements of a validated shape; 0 if the shape is unknown.
inline std::uint64_t Elements(const Layout& layout) {
  return layout.Has(Statistic::kShape) ? NumelOf(layout.shape) : 0;
}

// Layouts of the session as they are with a batch's own definitions.
class LayoutTable {
 public:
  LayoutTable(KnownLayouts known, const std::vector<Layout>& own)
      : known_(known), own_(own), own_first_(own.empty() ? 0 : own.front().id) {}

  // nullptr if there is none.
  const Layout* Find(std::uint32_t id) const {
    if (id < known_.size()) return &known_[id];
    if (id >= own_first_ && id - own_first_ < own_.size()) return &own_[id - own_first_];
    return nullptr;
  }

 private:
  KnownLayouts known_;
  const std::vector<Layout>& own_;
  std::uint32_t own_first_;
};

}  // namespace statcollect::convert

#endif  // STATCOLLECT_PROTO_CONVERT_LAYOUT_TABLE_H_
