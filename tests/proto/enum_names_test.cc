// The proto files and the tables of common/names.cc spell the same names, so that JSON, options and
// messages agree.
#include <set>
#include <string>

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "common/names.h"
#include "proto/json.h"
#include "statcollect/v1/ingest.pb.h"
#include "statcollect/v1/stats.pb.h"

namespace statcollect {
namespace {

template <typename Enum>
void ExpectSameNames(const google::protobuf::EnumDescriptor& type, int count) {
  std::set<std::string> names;
  for (int value = 0; value < count; ++value) {
    const std::string name(Name(static_cast<Enum>(value)));
    EXPECT_EQ(EnumText(type, value), name) << type.full_name() << " " << value;
    EXPECT_TRUE(names.insert(name).second) << type.full_name() << " has '" << name << "' twice";
  }
  EXPECT_EQ(type.value_count(), count) << type.full_name();
}

TEST(EnumNames, AreTheSameInProtoFilesAndTables) {
  ExpectSameNames<DType>(*v1::DType_descriptor(), kDTypeCount);
  ExpectSameNames<Kind>(*v1::Kind_descriptor(), kKindCount);
  ExpectSameNames<Mode>(*v1::Mode_descriptor(), kModeCount);
  ExpectSameNames<IfExists>(*v1::IfExists_descriptor(), kIfExistsCount);
  ExpectSameNames<MemoryPhase>(*v1::MemoryPhase_descriptor(), kMemoryPhaseCount);
  ExpectSameNames<DensityType>(*v1::DensityType_descriptor(), kDensityTypeCount);
}

}  // namespace
}  // namespace statcollect
