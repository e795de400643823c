package walgate

import java.io.{ByteArrayOutputStream, IOException}
import java.lang.{Boolean => JavaBoolean}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.FileAlreadyExistsException
import java.util.{Arrays, Iterator => JavaIterator}

import io.delta.storage.HadoopFileSystemLogStore
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}

/** Writes the commits of Delta tables in an object store, each only if its version is free.
  *
  * Delta's own store for S3 looks first and writes then, so it overwrites the commit of another
  * process. Here the store itself refuses the second writer.
  */
class ConditionalLogStore(conf: Configuration) extends HadoopFileSystemLogStore(conf) {

  override def write(
      path: Path, actions: JavaIterator[String], overwrite: JavaBoolean, hadoop: Configuration
  ): Unit = {
    val buffer = new ByteArrayOutputStream()
    actions.forEachRemaining(action => buffer.write((action + "\n").getBytes(UTF_8)))
    val bytes = buffer.toByteArray
    val store = path.getFileSystem(hadoop)
    try {
      if (bytes.length < store.getConf.getLongBytes(PartSize, 0)) create(store, path, bytes, overwrite)
      else createAtOnce(path, hadoop, bytes, overwrite)
    } catch {
      case refused: IOException if !overwrite && store.exists(path) =>
        // The reply to the first try may be lost, and the second one refused.
        if (!Arrays.equals(read(store, path), bytes)) {
          throw new FileAlreadyExistsException(path.toString)
        }
    }
  }

  override def isPartialWriteVisible(path: Path, hadoop: Configuration): JavaBoolean = false

  private val PartSize = "fs.s3a.multipart.size"

  /** Writes a commit that is larger than a part by one request, too.
    *
    * A store may honour the condition of a request that writes an object, and ignore that of a
    * request that joins parts. The check at each start tries only the first.
    */
  private def createAtOnce(
      path: Path, hadoop: Configuration, bytes: Array[Byte], overwrite: Boolean
  ): Unit = {
    val own = new Configuration(hadoop)
    own.setLong(PartSize, bytes.length + 1L)
    val store = FileSystem.newInstance(path.toUri, own)
    try create(store, path, bytes, overwrite)
    finally store.close()
  }

  private def create(store: FileSystem, path: Path, bytes: Array[Byte], overwrite: Boolean): Unit = {
    val file = store.createFile(path).overwrite(true)
    if (!overwrite) file.must("fs.option.create.conditional.overwrite", true)
    val out = file.build()
    out.write(bytes)
    out.close()
  }

  private def read(store: FileSystem, path: Path): Array[Byte] = {
    val in = store.open(path)
    try in.readAllBytes()
    finally in.close()
  }
}
