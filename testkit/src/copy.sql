-- Copy a database. {copy}, {template}: names, quoted.
-- No index. Locking: nobody may be connected to the template.
CREATE DATABASE {copy} TEMPLATE {template}
