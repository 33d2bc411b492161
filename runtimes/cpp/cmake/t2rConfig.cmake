# find_package(t2r): t2r::t2r is the shared library, t2r::static the static one. ONNX Runtime is the one beside them; where
# none lies there, the system's, or T2R_ONNXRUNTIME_ROOT or T2R_ONNXRUNTIME_LIBRARY say where, as when this was built.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
get_filename_component(beside ${CMAKE_CURRENT_LIST_DIR}/../../libonnxruntime.so.1 ABSOLUTE)
if(EXISTS ${beside} AND NOT TARGET T2r::onnxruntime)
  add_library(T2r::onnxruntime SHARED IMPORTED)
  set_target_properties(T2r::onnxruntime PROPERTIES IMPORTED_LOCATION ${beside})
elseif(NOT TARGET T2r::onnxruntime)
  list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
  find_dependency(T2rOnnxRuntime)
  list(REMOVE_ITEM CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
endif()
include(${CMAKE_CURRENT_LIST_DIR}/t2rTargets.cmake)
